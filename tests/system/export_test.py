#!/usr/bin/env python3
"""A model that is loaded and not trained is written unchanged, bit for bit: names, layouts of experts, dtypes, shards,
index. Packed experts are written as bf16. Of multimodal models the text part is trained, and the rest is written
unchanged."""

import json
import unittest
from pathlib import Path

from launched import SAMPLE, LaunchedTest, settings

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "max_position_embeddings": 64, "initializer_range": 0.1, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "qwen3_moe": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [1]},
    "gpt_oss": {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 4, "intermediate_size": 64},
}


def make_model(family: str, dtype: str):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(5)
    vocabulary = json.loads((SAMPLE / "model" / "config.json").read_text())["vocab_size"]
    config = AutoConfig.for_model(family, vocab_size=vocabulary, **(SIZES | FAMILIES[family]))
    return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))


def save_as_in_memory(model, folder: Path, num_shards: int):
    """Like save_pretrained(), which splits a new model's experts, but keeps them fused."""
    from safetensors.torch import save_file

    model.config.save_pretrained(folder)
    values = {name: value.contiguous() for name, value in model.state_dict().items()}
    if num_shards == 1:
        save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, weight_map = list(values), {}
    for i in range(num_shards):
        mine = names[i::num_shards]
        file = f"model-{i + 1:05}-of-{num_shards:05}.safetensors"
        save_file({name: values[name] for name in mine}, folder / file, metadata={"format": "pt", "part": str(i)})
        weight_map |= dict.fromkeys(mine, file)
    size = sum(value.nbytes for value in values.values())
    index = {"metadata": {"total_size": size, "note": "mine"}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n\n")


class ExportedTest(LaunchedTest):
    def export(self, model: Path, dtype: str, **changes) -> Path:
        text = self.run_train(settings(self.output, model=model, max_steps=0, dtype=dtype, **changes)).stdout
        self.assertIn("trained 0 steps", text)
        self.assertEqual((self.output / "metrics.jsonl").read_text(), "")
        return self.output / "final"

    def assert_same_files(self, given: Path, written: Path):
        names = {p.name for p in given.iterdir()} - {"notes.txt"}
        self.assertEqual({p.name for p in written.iterdir()}, names | {"SHA256SUMS"})
        for path in map(given.joinpath, names):
            self.assertEqual(path.read_bytes(), (written / path.name).read_bytes(), path.name)


class ExportTest(ExportedTest):
    def check(self, family: str, dtype: str, save, expected_files: int):
        model = self.directory / "model"
        model.mkdir()
        (model / "LICENSE").write_text("kept\n")
        (model / "notes.txt").write_text("left out\n")
        save(make_model(family, dtype), model)
        self.assertEqual(len(list(model.glob("*.safetensors"))), expected_files)
        self.assert_same_files(model, self.export(model, "fp32" if dtype == "float32" else "bf16"))

    def test_one_file_in_fp32(self):
        self.check("llama", "float32", lambda model, folder: model.save_pretrained(folder), 1)

    def test_shards_in_bf16(self):
        self.check("llama", "bfloat16", lambda model, folder: model.save_pretrained(folder, max_shard_size="50KB"), 2)

    def test_experts_one_by_one_in_shards(self):
        self.check("qwen3_moe", "bfloat16", lambda model, folder: model.save_pretrained(folder, max_shard_size="90KB"), 2)

    def test_fused_experts_in_fp32(self):
        self.check("qwen3_moe", "float32", lambda model, folder: save_as_in_memory(model, folder, 1), 1)

    def test_fused_experts_in_shards(self):
        self.check("qwen3_moe", "bfloat16", lambda model, folder: save_as_in_memory(model, folder, 2), 2)

    def test_gpt_oss_in_shards(self):
        self.check("gpt_oss", "bfloat16", lambda model, folder: model.save_pretrained(folder, max_shard_size="120KB"), 2)

    def test_packed_experts_become_bf16(self):
        import torch
        from safetensors.torch import load_file, save_file
        from transformers import AutoModelForCausalLM
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        model = make_model("gpt_oss", "bfloat16")
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        packed, unpacked = self.directory / "packed", self.directory / "unpacked"
        save_as_in_memory(model, packed, 2)
        index_file = packed / "model.safetensors.index.json"
        index = json.loads(index_file.read_text())
        for file in sorted(packed.glob("*.safetensors")):
            values = load_file(file)
            for name in [name for name in values if ".experts." in name and not name.endswith("_bias")]:
                experts, into, out = values.pop(name).shape
                blocks = torch.randint(0, 256, (experts, out, into // 32, 16), dtype=torch.uint8)
                scales = torch.randint(118, 124, (experts, out, into // 32), dtype=torch.uint8)
                expected[name] = convert_moe_packed_tensors(blocks, scales)
                values |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
                del index["weight_map"][name]
                index["weight_map"] |= {f"{name}_blocks": file.name, f"{name}_scales": file.name}
            save_file(values, file, metadata={"format": "pt"})
        index_file.write_text(json.dumps(index))
        config = json.loads((packed / "config.json").read_text())
        (packed / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
        self.export(packed, "bf16").rename(unpacked)
        self.assertEqual(list(json.loads((unpacked / "config.json").read_text()).items()), list(config.items()))
        found = tensors_of(unpacked)
        self.assertEqual(found.keys(), expected.keys())
        for name, value in expected.items():
            self.assertTrue(found[name].equal(value), name)
        index = json.loads((unpacked / "model.safetensors.index.json").read_text())
        self.assertEqual(index["weight_map"].keys(), expected.keys())
        self.assertEqual(index["metadata"], {"total_size": sum(value.nbytes for value in expected.values()), "note": "mine"})
        for name, value in AutoModelForCausalLM.from_pretrained(unpacked).state_dict().items():
            self.assertTrue(expected[name].equal(value), name)
        # The written model can be trained like any other model.
        self.run_train(settings(self.output / "again", model=unpacked, max_steps=1))

    def test_pairs_that_are_not_trained_change_nothing_when_they_are_merged(self):
        model = self.directory / "model"
        save_as_in_memory(make_model("qwen3_moe", "bfloat16"), model, 2)
        self.export(model, "bf16", lora_rank=2, lora_experts=True, save_merged=True)
        self.assert_same_files(model, self.output / "merged")


def make_multimodal(folder: Path):
    """Creates a Gemma 3 with a vision part, in two shards."""
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    torch.manual_seed(6)
    vocabulary = json.loads((SAMPLE / "model" / "config.json").read_text())["vocab_size"]
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    text = SIZES | {"vocab_size": vocabulary, "sliding_window": 7, "query_pre_attn_scalar": 12}
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4))
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="60KB")


def tensors_of(folder: Path) -> dict:
    from safetensors.torch import load_file

    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


class MultimodalTest(ExportedTest):
    """The text part of a multimodal model is trained, and the rest is copied unchanged."""

    def setUp(self):
        super().setUp()
        self.model = self.directory / "model"
        make_multimodal(self.model)
        self.given = tensors_of(self.model)
        self.others = {name for name in self.given if not name.startswith("language_model.")}
        self.assertGreater(len(self.others), 10)

    def assert_only_text_changed(self, written: Path):
        found = tensors_of(written)
        self.assertEqual(self.given.keys(), found.keys())
        for name in self.others:
            self.assertTrue(self.given[name].equal(found[name]), name)
        self.assertFalse(all(self.given[name].equal(found[name]) for name in found))

    def test_untrained_it_has_the_same_bytes(self):
        self.assertEqual(len(list(self.model.glob("*.safetensors"))), 2)
        self.assert_same_files(self.model, self.export(self.model, "bf16"))

    def test_training_says_what_is_trained_and_leaves_the_rest(self):
        text = " ".join(self.run_train(settings(self.output, model=self.model)).stdout.split())  # undoes the line breaks of the header
        line = f"of a model of type gemma3, whose {len(self.others)} other tensors are carried along as they are"
        self.assertEqual(text.count(line), 1, text)
        self.assert_only_text_changed(self.output / "final")

    def test_peft_reads_its_adapter(self):
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        self.run_train(settings(self.output, model=self.model, lora_rank=4, train="language_model.norm", save_merged=True, dtype="fp32",
                                learning_rate="1e-2"))
        self.assert_only_text_changed(self.output / "merged")
        load = lambda folder: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = torch.arange(5, 45).view(1, 40)
        with torch.no_grad():
            before, merged = load(self.model)(ids).logits, load(self.output / "merged")(ids).logits
            adapted = PeftModel.from_pretrained(load(self.model), self.output / "final")
            logits = adapted(ids).logits
        trained = [name for name, _ in adapted.named_parameters() if "lora_" in name or "modules_to_save" in name]
        self.assertFalse([name for name in trained if "vision" in name])
        self.assertEqual(len(trained), 2 * 7 * SIZES["num_hidden_layers"] + 1)
        self.assertGreater((logits - before).norm() / before.norm(), 1e-3)
        # The merged weights are rounded to the base's bf16.
        self.assertLess((logits - merged).norm() / (logits - before).norm(), 0.2)


if __name__ == "__main__":
    unittest.main()
