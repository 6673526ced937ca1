#!/usr/bin/env python3
"""LoRA on models whose files are quantised has the same bits with any number of workers, and whether the frozen weights are kept quantised or
expanded when they are read. It changes nothing but the adapter."""

import json
import shutil
import sys
import unittest
from pathlib import Path

from launched import SAMPLE, LaunchedTest, bits, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

from quantised_model import fp8, fp8_config, nf4, nf4_config, quantise_model  # noqa: E402

ADAPTED = ("q_proj", "down_proj")


class QuantisedFilesTest(LaunchedTest):
    def check(self, quantization: dict, quantise, bits_each: str):
        from safetensors.torch import load_file

        model = shutil.copytree(SAMPLE / "model", self.directory / "model")
        values = quantise_model(model, quantization, quantise)
        given = (model / "model.safetensors").read_bytes()
        found = []
        for launch, changes in ((("--workers", "1"), {}), (("--workers", "2"), {}), (("--workers", "2"), {"quantize": "none"})):
            output = self.directory / f"output{len(found)}"
            text = self.run_train(settings(output, model=model, lora_rank=4, lora_targets=",".join(ADAPTED), save_merged=True, **changes), launch).stdout
            text = " ".join(text.split())  # undoes the line breaks of the header
            self.assertEqual(f"frozen ones are quantised, with {bits_each} bits each" in text, not changes, text)
            found.append((bits(output, "adapter_model.safetensors"), (output / "merged" / "model.safetensors").read_bytes()))
            self.assertEqual(found[-1], found[0], changes)
        self.assertEqual((model / "model.safetensors").read_bytes(), given)
        merged = load_file(self.directory / "output0" / "merged" / "model.safetensors")
        self.assertEqual(merged.keys(), values.keys())
        for name, value in values.items():
            is_adapted = any(f"{layer}.weight" in name for layer in ADAPTED)
            self.assertEqual(merged[name].equal(value), not is_adapted, name)
        self.assertNotIn("quantization_config", json.loads((self.directory / "output0" / "merged" / "config.json").read_text()))
        # What was merged is a model like any other.
        self.run_train(settings(self.directory / "again", model=self.directory / "output0" / "merged", max_steps=1))

    def test_nf4(self):
        self.check(nf4_config(True), lambda name, weight: nf4(name, weight, True), "4.59")  # their parts are padded, which counts in tiny weights

    def test_fp8(self):
        self.check(fp8_config(), fp8, "8.17")

    def test_a_method_that_is_not_read_is_refused(self):
        model = shutil.copytree(SAMPLE / "model", self.directory / "model")
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq", "bits": 4}}))
        self.refused(64, "weights quantised by 'awq'; convert them to bf16 first", model=model, lora_rank=4)


if __name__ == "__main__":
    unittest.main()
