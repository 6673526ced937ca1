#!/usr/bin/env python3
"""A model that is loaded and not trained is written as it came: names, layouts of experts, dtypes, shards, index, bit for bit. Packed
experts are written as bf16."""

import json
import unittest
from pathlib import Path

from launched import SAMPLE, LaunchedTest, settings

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "max_position_embeddings": 64, "initializer_range": 0.1, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "qwen3_moe": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [1]},
}


def make_model(family: str, dtype: str):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(5)
    vocabulary = json.loads((SAMPLE / "model" / "config.json").read_text())["vocab_size"]
    config = AutoConfig.for_model(family, vocab_size=vocabulary, **SIZES, **FAMILIES[family])
    return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))


def save_as_in_memory(model, folder: Path, num_shards: int):
    """As save_pretrained(), which splits a new model's experts, but with them fused."""
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


class ExportTest(LaunchedTest):
    def export(self, model: Path, dtype: str, **changes) -> Path:
        text = self.run_train(settings(self.output, model=model, max_steps=0, dtype=dtype, **changes)).stdout
        self.assertIn("trained 0 steps", text)
        self.assertEqual((self.output / "metrics.jsonl").read_text(), "")
        return self.output / "final"

    def assert_same_files(self, given: Path, written: Path):
        self.assertEqual(sorted(p.name for p in given.iterdir()), sorted(p.name for p in written.iterdir()))
        for path in given.iterdir():
            self.assertEqual(path.read_bytes(), (written / path.name).read_bytes(), path.name)

    def check(self, family: str, dtype: str, save, expected_files: int):
        model = self.directory / "model"
        model.mkdir()
        (model / "notes.txt").write_text("kept\n")
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

    def test_pairs_that_are_not_trained_change_nothing_when_they_are_merged(self):
        model = self.directory / "model"
        save_as_in_memory(make_model("qwen3_moe", "bfloat16"), model, 2)
        self.export(model, "bf16", lora_rank=2, lora_experts=True, save_merged=True)
        self.assert_same_files(model, self.output / "merged")


if __name__ == "__main__":
    unittest.main()
