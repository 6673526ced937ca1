#!/usr/bin/env python3
"""Compares whole runs of train with programs that share nothing with its runtime: the reference loop, whose bits must
be equal, and transformers with torch.optim.AdamW, whose numbers must be close."""

import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import launched
from launched import SAMPLE, LaunchedTest, bits, metrics, settings

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from token_file import TokenFileWriter  # noqa: E402


class ReferenceLoopTest(LaunchedTest):
    def equal(self, **changes):
        ours, reference = self.directory / "ours", self.directory / "reference"
        for dtype, model in (("bf16", SAMPLE / "model"), ("fp32", SAMPLE / "model_fp32")):
            with self.subTest(dtype=dtype, **changes):
                run = changes | {"dtype": dtype, "model": model, "max_grad_norm": 0.5}
                self.run_train(settings(ours / dtype, **run), ("--workers", "2"))
                words = settings(reference / dtype, **run)
                losses = subprocess.run([os.environ["RP_REFERENCE_TRAIN"], *words], check=True, capture_output=True, text=True,
                                        timeout=launched.DEADLINE_S).stdout
                (reference / dtype / "metrics.jsonl").write_text("".join(f'{{"loss": {l},}}\n' for l in losses.split()))
                self.assertEqual(len(losses.split()), 4)
                self.assertEqual(bits(ours / dtype), bits(reference / dtype))

    def test_sync(self):
        self.equal()

    def test_async(self):
        self.equal(**{"async": True})

    def test_sync_with_several_rounds_a_step(self):
        self.equal(rounds_per_step=2, weight_decay=0.1, decay_all=True)

    def test_async_with_several_rounds_a_step(self):
        self.equal(rounds_per_step=2, **{"async": True})


class Parity:
    """Five fp32 steps of `model` on the same rows, with train and with transformers."""

    STEPS, ROWS, LEARNING_RATE, MAX_GRAD_NORM = 5, 8, 1e-4, 1.0
    WEIGHTS = "model.safetensors"  # the trained weights, in `initial` and in the run's folder

    def __init__(self, test: LaunchedTest, model: Path, sequence_length: int):
        import torch

        self.test, self.model, self.length = test, model, sequence_length
        self.initial, self.parts = model, {}  # parts: the settings that select what is trained
        self.vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        generator = torch.Generator().manual_seed(5)
        # As many rows as a step uses, so each step uses all of them, in any order. Their lengths
        # and masks differ.
        self.rows = []
        for row in range(self.ROWS):
            tokens = torch.randint(0, self.vocabulary, (sequence_length - 2 * row,), generator=generator).tolist()
            tokens[3] = json.loads((model / "config.json").read_text())["pad_token_id"]  # its embedding is not trained
            self.rows.append((tokens, [int(i >= row) for i in range(len(tokens))]))

    def ours(self) -> list[float]:
        file = TokenFileWriter(vocabulary=self.vocabulary, eos_token=None, kind="chat")
        for tokens, mask in self.rows:
            file.add(tokens, mask)
        data = self.test.directory / "rows.tokens"
        file.write(data)
        self.test.run_train(settings(self.test.output, model=self.model, data=data, max_steps=self.STEPS, batch_size=self.ROWS,
                                     sequence_length=self.length, learning_rate=self.LEARNING_RATE, dtype="fp32", no_packing=True,
                                     max_grad_norm=self.MAX_GRAD_NORM, **self.parts))
        return [step["loss"] for step in metrics(self.test.output)]

    def load(self):
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)

    def trained(self, model) -> dict:
        return {name: value.detach() for name, value in model.named_parameters()}

    def transformers(self) -> tuple[list[float], dict]:
        import torch

        model = self.load()
        optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=self.LEARNING_RATE, weight_decay=0)
        ids = torch.zeros(self.ROWS, self.length, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for row, (tokens, mask) in enumerate(self.rows):
            ids[row, :len(tokens)] = torch.tensor(tokens)
            labels[row, :len(tokens)] = torch.where(torch.tensor(mask) == 1, torch.tensor(tokens), -100)
        losses = []
        for _ in range(self.STEPS):
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, self.trained(model)

    def check(self):
        from safetensors.torch import load_file

        losses, (expected_losses, expected) = self.ours(), self.transformers()
        before, after = (load_file(path / self.WEIGHTS) for path in (self.initial, self.test.output / "final"))
        self.test.assertEqual(len(losses), self.STEPS)
        worst = max(abs(a - b) / b for a, b in zip(losses, expected_losses))
        difference = sum(((after[name] - value).double() ** 2).sum() for name, value in expected.items()) ** 0.5
        change = sum(((value - before[name]).double() ** 2).sum() for name, value in expected.items()) ** 0.5
        print(f"losses differ by at most {worst:.1e}; |dw - dw_ref| / |dw_ref| = {difference / change:.1e}")
        self.test.assertLess(losses[-1], losses[0])
        self.test.assertLessEqual(worst, 1e-5)
        self.test.assertLessEqual(difference / change, 2e-4)


class AdapterParity(Parity):
    """Twenty steps of an adapter that peft created, with train and with peft."""

    STEPS, LEARNING_RATE = 20, 1e-3
    WEIGHTS = "adapter_model.safetensors"

    def __init__(self, test: LaunchedTest, model: Path, sequence_length: int, **lora):
        import torch
        from peft import LoraConfig, get_peft_model

        super().__init__(test, model, sequence_length)
        torch.manual_seed(6)
        self.initial = test.directory / "adapter"
        get_peft_model(super().load(), LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **lora)).save_pretrained(self.initial)
        self.parts = {"adapter": self.initial}

    def load(self):
        from peft import PeftModel

        return PeftModel.from_pretrained(super().load(), self.initial, is_trainable=True)

    def trained(self, model) -> dict:
        from peft import get_peft_model_state_dict

        return {name: value.detach() for name, value in get_peft_model_state_dict(model).items()}


class ParityTest(LaunchedTest):
    def test_losses_and_weights_are_those_of_transformers_and_torch_adamw(self):
        Parity(self, SAMPLE / "model_fp32", 32).check()

    def test_adapters_are_those_of_peft_and_torch_adamw(self):
        for name, lora in {"lora": {"target_modules": "all-linear"}, "dora": {"target_modules": ["q_proj", "up_proj"], "use_dora": True}}.items():
            with self.subTest(name):
                AdapterParity(self, SAMPLE / "model_fp32", 32, **lora).check()
                shutil.rmtree(self.output)


if __name__ == "__main__":
    unittest.main()
