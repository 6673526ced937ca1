#!/usr/bin/env python3
"""Training has the same bits with any number of workers, for all kinds of layers: windows, latent attention, experts, keys of
earlier layers, a delta rule, a shared expert, pairs of LoRA. Parts that were not trained are exported unchanged."""

import json
import os
import shutil
import unittest
from pathlib import Path

from launched import SAMPLE, LaunchedTest, bits, make_model, metrics, settings

MODELS = Path(os.environ["RP_FAMILY_MODELS"])  # created by make_family_models.py
MODES = {"sync": {}, "async": {"async": True}}
LAUNCHES = (["--workers", "1", "--prefetch", "0"], ["--workers", "2"], ["--workers", "3"], ["--workers", "8"])
GRAINS = ("stage", "layer")
PAIRS = {"lora_rank": 4, "lora_alpha": 6, "lora_dropout": 0.1, "dora": True}


class FamiliesBitsTest(LaunchedTest):
    def check(self, family: str, **changes):
        """Runs in both modes: with each number of workers and each grain, those with the same workers in one session, and by `train`."""
        changes["model"] = MODELS / family
        file = "adapter_model.safetensors" if "lora_rank" in changes else "model.safetensors"
        for mode, options in MODES.items():
            self.run_train(settings(self.directory / f"{mode} alone", **options, **changes))
        for launch in LAUNCHES:
            self.run_together([settings(self.directory / f"{mode}{launch[1]}{grain}", recompute_grain=grain, **options, **changes)
                               for mode, options in MODES.items() for grain in GRAINS], launch)
        for mode in MODES:
            expected = bits(self.directory / f"{mode} alone", file)
            self.assertEqual(len(expected[0]), 4)
            for launch in LAUNCHES:
                for grain in GRAINS:
                    self.assertEqual(bits(self.directory / f"{mode}{launch[1]}{grain}", file), expected, (mode, launch, grain))

    def test_windows(self):
        self.check("gemma3_text")

    def test_experts(self):
        self.check("qwen3_moe", router_aux_loss=0.5, z_loss=0.01)
        step = metrics(next(self.directory.glob("*1stage")))[0]
        self.assertGreater(step["z_loss"], 0)
        self.assertGreater(step["aux_loss"], 0.5 * 1.5)  # 0.5 * 2 for two balanced experts per token
        self.assertTrue(0 <= step["least_loaded_expert"] <= 1 <= step["most_loaded_expert"] <= 3, step)

    def test_experts_with_corrections(self):
        from safetensors.torch import load_file

        self.check("glm4_moe")
        read = load_file(MODELS / "glm4_moe" / "model.safetensors")
        written = load_file(next(self.directory.glob("*1stage/final")) / "model.safetensors")
        kept = [name for name in read if name.endswith(("e_score_correction_bias", "layers.3.enorm.weight"))]
        self.assertEqual(len(kept), 3)
        for name in read:
            self.assertEqual(written[name].dtype, read[name].dtype)
            self.assertEqual(written[name].tolist() == read[name].tolist(), name in kept, name)

    def test_latent_attention(self):
        self.check("deepseek_v3")

    def test_keys_of_earlier_layers(self):
        from safetensors.torch import load_file

        self.check("gemma4_text")
        read = load_file(MODELS / "gemma4_text" / "model.safetensors")
        written = load_file(next(self.directory.glob("*1stage/final")) / "model.safetensors")
        self.assertEqual(read.keys(), written.keys())
        for name, value in read.items():
            self.assertEqual(value.equal(written[name]), name.endswith(("layer_scalar", "4.self_attn.k_proj.weight")), name)

    def test_hybrid(self):
        from safetensors.torch import load_file

        self.check("qwen3_5_moe_text", router_aux_loss=0.5)
        model = MODELS / "qwen3_5_moe_text"
        read = load_file(model / "model.safetensors")
        written = load_file(next(self.directory.glob("*1stage/final")) / "model.safetensors")
        frozen = self.directory / "frozen"
        self.run_train(settings(frozen, model=model, freeze="A_log"))
        kept = load_file(frozen / "final" / "model.safetensors")
        for name in (name for name in read if name.endswith("A_log")):
            self.assertNotEqual(read[name].tolist(), read[name].bfloat16().float().tolist())
            self.assertEqual(kept[name].tolist(), read[name].tolist(), "what is frozen keeps all digits")
            self.assertNotEqual(written[name].tolist(), read[name].tolist())
            self.assertNotEqual(written[name].tolist(), written[name].bfloat16().float().tolist(), "so does what is trained")

    def test_pairs_of_a_hybrid(self):
        self.check("qwen3_5_text", **PAIRS)

    def test_nf4(self):
        self.check("gemma3_text", quantize="nf4", **PAIRS)

    def test_fp8(self):
        self.check("qwen3_moe", quantize="fp8", freeze="experts")

    def test_experts_that_the_files_have_in_mxfp4(self):
        from safetensors.torch import load_file
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        self.check("gpt_oss", lora_rank=4, lora_experts=True)
        model = MODELS / "gpt_oss"
        read = load_file(model / "model.safetensors")
        outputs = {}
        for stored in (None, "none"):
            output = self.directory / f"merged {stored}"
            text = self.run_train(settings(output, model=model, lora_rank=4, quantize=stored, save_merged=True)).stdout
            self.assertEqual("frozen ones are quantised, with 4.25 bits each" in " ".join(text.split()), stored is None, text)
            outputs[stored] = load_file(output / "merged" / "model.safetensors")
            self.assertNotIn("quantization_config", json.loads((output / "merged" / "config.json").read_text()))
        self.assertEqual(outputs[None].keys(), outputs["none"].keys())
        for name, value in outputs[None].items():
            self.assertEqual(value.tolist(), outputs["none"][name].tolist(), f"{name}: expanded on the device or at the start, it is the same")
            if f"{name}_blocks" in read:
                self.assertEqual(value.tolist(), convert_moe_packed_tensors(read[f"{name}_blocks"], read[f"{name}_scales"]).tolist(), "nothing has changed it")

    def test_nothing_to_quantise_is_refused(self):
        self.refused(2, "frozen weights are to be quantised", "no weight of a linear layer is frozen", quantize="nf4")

    def test_balance_of_a_model_without_experts_is_refused(self):
        self.refused(2, "--router-aux-loss 0.1 balances experts", "(llama) has none; leave it out", router_aux_loss=0.1)

    def test_pairs(self):
        self.check("gemma3_text", **PAIRS, train="norm.weight|embed_tokens")

    def test_pairs_of_experts(self):
        self.check("qwen3_moe", lora_rank=3, lora_experts=True, lora_dropout=0.2)


class AdapterTest(LaunchedTest):
    """Adapters that train writes can be resumed, continued and merged. Problems of other adapters are reported before
    anything is written."""

    def setUp(self):
        super().setUp()
        self.adapter = self.output / "final"

    def test_resumed_is_uninterrupted(self):
        whole, parts = self.directory / "whole", self.directory / "parts"
        changes = PAIRS | {"max_steps": 6, "train": "norm.weight"}
        self.run_train(settings(whole, **changes))
        self.run_train(settings(parts, save_every=3, **changes))
        (parts / "final").rename(self.directory / "old_final")
        (parts / "checkpoint-6").rename(self.directory / "old_checkpoint")
        self.run_train(settings(parts, resume=parts, **changes), ("--workers", "3"))
        self.assertEqual([m["step"] for m in metrics(parts)], [1, 2, 3, 4, 5, 6])
        self.assertEqual(bits(whole, "adapter_model.safetensors"), bits(parts, "adapter_model.safetensors"))

    def test_a_checkpoint_of_other_parts_is_refused(self):
        self.run_train(settings(self.output, save_every=2, lora_rank=4))
        (self.output / "final").rename(self.directory / "old_final")
        self.refused(2, "--lora-rank is 8, but", "was saved with 4", untouched=False, max_steps=8, save_every=2, lora_rank=8, resume=self.output)

    def test_what_is_read_is_written(self):
        self.run_train(settings(self.output, **PAIRS, train="norm.weight"))
        again = self.directory / "again"
        text = self.run_train(settings(again, max_steps=1, learning_rate="1e-30", adapter=self.adapter)).stdout
        self.assertIn(str(self.adapter), text)
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            self.assertEqual((self.adapter / name).read_bytes(), (again / "final" / name).read_bytes(), name)

    def test_frozen_weights_are_merged_and_otherwise_as_they_came(self):
        from safetensors.torch import load_file

        self.run_train(settings(self.output, lora_rank=4, lora_targets="q_proj,v_proj", save_merged=True))
        given, merged = (load_file(folder / "model.safetensors") for folder in (SAMPLE / "model", self.output / "merged"))
        self.assertEqual(given.keys(), merged.keys())
        for name, value in given.items():
            is_adapted = "q_proj" in name or "v_proj" in name
            self.assertEqual(value.equal(merged[name]), not is_adapted, name)

    def test_what_is_frozen_stays(self):
        from safetensors.torch import load_file

        self.run_train(settings(self.output, freeze=r"layers\.[01]\.|embed"))
        given, trained = (load_file(folder / "model.safetensors") for folder in (SAMPLE / "model", self.output / "final"))
        for name, value in given.items():
            is_frozen = any(part in name for part in ("layers.0.", "layers.1.", "embed"))
            self.assertEqual(value.equal(trained[name]), is_frozen, name)

    def test_peft_reads_the_adapter(self):
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        self.run_train(settings(self.output, lora_rank=4, dora=True, dtype="fp32", save_merged=True))
        base = AutoModelForCausalLM.from_pretrained(SAMPLE / "model", dtype=torch.float32)
        merged = AutoModelForCausalLM.from_pretrained(self.output / "merged", dtype=torch.float32)
        ids = torch.arange(5, 45).view(1, 40) % base.config.vocab_size
        with torch.no_grad():
            before = base(ids).logits
            adapted = PeftModel.from_pretrained(base, self.adapter)(ids).logits
            self.assertGreater((adapted - before).norm() / before.norm(), 1e-3)
            # The merged weights are rounded to the base's bf16.
            self.assertLess((adapted - merged(ids).logits).norm() / (adapted - before).norm(), 0.2)

    def test_an_adapter_of_another_base_is_refused(self):
        self.run_train(settings(self.output, lora_rank=4))
        other = make_model(self.directory / "other_base", intermediate_size=40)
        adapter = self.adapter.rename(self.directory / "adapter")
        shutil.rmtree(self.output)
        message = self.refused(64, "is it an adapter of another model?", model=other, adapter=adapter)
        self.assertIn("lora_B.weight", message)

    def test_what_matches_nothing_is_refused(self):
        self.refused(2, "LoRA's target 'w_proj' matches nothing", "model.layers.0.mlp.down_proj", lora_rank=4, lora_targets="w_proj")
        self.refused(2, "what to freeze, 'layers.99' matches nothing", freeze="layers.99")
        self.refused(2, "nothing is trained", freeze=".")
        self.refused(2, "--lora-alpha is for LoRA", lora_alpha=8)


if __name__ == "__main__":
    unittest.main()
