#!/usr/bin/env python3
"""Trains SmolLM2-135M: on the Jargon File, 1, 2 and 3 workers must give the same bits, and in fp32 the numbers must be
close to those of transformers."""

import subprocess
import sys
import unittest
from pathlib import Path

import launched
from launched import LaunchedTest, bits, settings
from reference_test import Parity

TOOLS = Path(__file__).resolve().parents[2] / "tools"
launched.DEADLINE_S = 300


class SampleModelTest(LaunchedTest):
    def tool(self, name: str, *words):
        subprocess.run([sys.executable, TOOLS / f"{name}.py", *map(str, words)], check=True, timeout=300)

    def test_same_bits_with_1_2_and_3_workers(self):
        model, chats, data = (self.directory / name for name in ("model", "jargon.jsonl", "jargon.tokens"))
        self.tool("fetch_sample_model", "--output", model)
        self.tool("jargon_chat", "--output", chats)
        self.tool("prepare_data", "--tokenizer", model, "--input", chats, "--output", data)
        results = []
        for workers in (1, 2, 3):
            output = self.directory / f"output-{workers}"
            process = self.run_train(settings(output, model=model, data=data, batch_size=5, sequence_length=64, learning_rate="1e-4"),
                                     ("--workers", str(workers)))
            self.assertIn("activations: budget", process.stdout, "the budget is printed also where it is a small part of the plan")
            results.append(bits(output))
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])

    def test_five_fp32_steps_are_those_of_transformers(self):
        from transformers import AutoModelForCausalLM

        model = self.directory / "model"
        self.tool("fetch_sample_model", "--output", model)
        AutoModelForCausalLM.from_pretrained(model, dtype="float32").save_pretrained(self.directory / "fp32")
        Parity(self, self.directory / "fp32", 64).check()


if __name__ == "__main__":
    unittest.main()
