#!/usr/bin/env python3
"""Reads models whose files are quantised (block-scaled and per-tensor 8-bit floats, NF4 of bitsandbytes with and without double
quantisation), exports them, and compares the exported weights, bit for bit, with what bitsandbytes expands them to, or with the definition of
8-bit floats. (transformers reads only shapes that are multiples of 128; references_test.py compares those with it.)

    quantised_files_test.py MODEL_VALUES [unittest's options]

Each model is exported twice: with all weights trained, so that they are expanded when they are read, and with an adapter that adds nothing, so
that they are kept as they are in the files.
"""

import json
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

import torch  # noqa: E402
from bitsandbytes.functional import QuantState, dequantize_4bit  # noqa: E402
from quantised_model import fp8, fp8_config, fp8_with_one_scale, is_linear, nf4, nf4_config, quantise_model  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

PROGRAM = ""
# Widths and heights that are no multiples of 128 or 64, nor of 16 (see nf4()).
SIZES = {"vocab_size": 61, "hidden_size": 152, "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 34, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {"llama": {"tie_word_embeddings": False},
            "qwen3_moe": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "mlp_only_layers": [1]}}


def nf4_as_read(name: str, weight: torch.Tensor, is_double: bool) -> tuple[dict, torch.Tensor]:
    """The same as nf4(), but with the values that bitsandbytes reads from the tensors."""
    tensors, _ = nf4(name, weight, is_double)
    described = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key != name}
    return tensors, dequantize_4bit(tensors[name], QuantState.from_dict(described, torch.device("cpu")))


class QuantisedFilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        torch.manual_seed(7)

    def make(self, family: str, quantization: dict, quantise, is_quantised) -> tuple[Path, dict]:
        """Writes a model, and returns its folder and the values of its tensors."""
        folder = self.folder / "model"
        config = AutoConfig.for_model(family, **SIZES | FAMILIES[family])
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        values = quantise_model(folder, quantization, quantise, is_quantised)
        ids = torch.randint(0, SIZES["vocab_size"], (1, 5))
        save_file({"ids": ids, "labels": ids.clone(), "divisor": torch.tensor(5.0)}, folder / "inputs.safetensors")
        return folder, values

    def add_adapter(self, folder: Path) -> None:
        """Adds pairs of rank 1 at all queries. Those of B are zeros."""
        adapter = folder / "adapter"
        adapter.mkdir()
        shapes = {"lora_A": (1, SIZES["hidden_size"]), "lora_B": (SIZES["num_attention_heads"] * SIZES["head_dim"], 1)}
        save_file({f"base_model.model.model.layers.{layer}.self_attn.q_proj.{part}.weight": torch.zeros(shape)
                   for layer in range(SIZES["num_hidden_layers"]) for part, shape in shapes.items()}, adapter / "adapter_model.safetensors")
        (adapter / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"], "bias": "none"}))

    def exported(self, folder: Path) -> dict:
        subprocess.run([PROGRAM, "bfloat16", folder], check=True)
        written = folder / "exported-bfloat16"
        self.assertNotIn("quantization_config", json.loads((written / "config.json").read_text()))
        AutoModelForCausalLM.from_pretrained(written)
        return load_file(written / "model.safetensors")

    def check(self, family: str, quantization: dict, quantise, is_quantised=is_linear) -> None:
        folder, expected = self.make(family, quantization, quantise, is_quantised)
        for is_frozen in (False, True):
            if is_frozen:
                (folder / "exported-bfloat16").rename(self.folder / "trained")
                (folder / "values-bfloat16.safetensors").unlink()
                self.add_adapter(folder)
            found = self.exported(folder)
            self.assertEqual(found.keys(), expected.keys())
            for name, value in expected.items():
                self.assertEqual((found[name].dtype, found[name].shape), (value.dtype, value.shape), name)
                # The sum of a pair and -0 is 0.
                same = found[name].equal(value) if "q_proj" in name else found[name].view(torch.int16).equal(value.view(torch.int16))
                self.assertTrue(same, f"{name}, {is_frozen=}")

    def test_blocks_of_8_bit_floats(self):
        self.check("llama", fp8_config(), fp8)

    def test_experts_with_scales_in_bf16(self):
        # The configuration names a layer that the files have quantised, and leaves out the router, which they have not.
        self.check("qwen3_moe", fp8_config(modules_to_not_convert=["lm_head", "v_proj"]),
                   lambda name, weight: fp8(name, weight, torch.bfloat16))

    def test_one_scale_for_a_matrix(self):
        self.check("llama", fp8_config(activation_scheme="static", weight_block_size=None), fp8_with_one_scale)

    def test_nf4(self):
        self.check("llama", nf4_config(False), lambda name, weight: nf4_as_read(name, weight, False))

    def test_nf4_with_double_quantisation(self):
        self.check("llama", nf4_config(True), lambda name, weight: nf4_as_read(name, weight, True))

    def test_experts_in_nf4(self):
        # transformers 4 also quantised the routers.
        self.check("qwen3_moe", nf4_config(True), lambda name, weight: nf4_as_read(name, weight, True),
                   lambda name: is_linear(name) or name.endswith("mlp.gate.weight"))

    def test_experts_that_are_not_quantised(self):
        self.check("qwen3_moe", nf4_config(True), lambda name, weight: nf4_as_read(name, weight, True),
                   lambda name: is_linear(name) and ".experts." not in name)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    warnings.simplefilter("ignore")
    unittest.main()
