#!/usr/bin/env python3
"""Experts are balanced without a loss (--router-bias-update-rate): the routers' corrections are those of a plain loop with transformers and of
the reference loop, have the same bits with any number of workers and after any interruption, and make the load more even."""

import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import launched
from launched import LaunchedTest, bits, metrics, settings, state_bits

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from token_file import TokenFileWriter  # noqa: E402

MODELS = Path(os.environ["RP_FAMILY_MODELS"])  # created by make_family_models.py
CORRECTION = "e_score_correction_bias"
RATE = 0.02
MODES = ({}, {"async": True})


def change_corrections(folder: Path, change) -> None:
    """Replaces each correction in a model's files by change(correction)."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file({name: change(value) if name.endswith(CORRECTION) else value for name, value in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})


def corrections(folder: Path) -> dict:
    """Returns the corrections in a model's files, by name."""
    from safetensors.torch import load_file

    return {name: value for name, value in load_file(folder / "model.safetensors").items() if name.endswith(CORRECTION)}


class RouterBiasTest(LaunchedTest):
    def settings(self, output: Path, family: str = "glm4_moe", **changes) -> list[str]:
        self.model = self.directory / family
        if not self.model.exists():
            shutil.copytree(MODELS / family, self.model)
            change_corrections(self.model, lambda correction: correction.float())  # as in published files
        return settings(output, **{"model": self.model, "router_bias_update_rate": RATE} | changes)

    def test_bits_depend_on_no_worker_and_no_grain(self):
        for mode in MODES:
            found = []
            for workers in (1, 2, 3):
                for grain in ("stage", "layer"):
                    output = self.directory / f"{mode}{workers}{grain}"
                    self.run_train(self.settings(output, recompute_grain=grain, **mode), ("--workers", str(workers)))
                    found.append(bits(output))
                    self.assertEqual(found[-1], found[0])
            moved = corrections(output / "final")
            for name, value in corrections(self.model).items():
                self.assertEqual(moved[name].dtype, value.dtype)
                # Four steps have moved each by at most four times the rate, some by less.
                steps = (moved[name] - value).div(RATE)
                self.assertLess((steps - steps.round()).abs().max(), 1e-4)
                self.assertTrue(1 <= steps.abs().max() <= 4.001, steps)

    def test_bits_of_several_rounds_and_of_fp16(self):
        for changes in ({"rounds_per_step": 2}, {"rounds_per_step": 2, "async": True}, {"dtype": "fp16"}, {"max_grad_norm": 0}):
            with self.subTest(**changes):
                one, three = (self.directory / f"{workers} {changes}" for workers in (1, 3))
                self.run_train(self.settings(one, "deepseek_v3", **changes), ("--workers", "1"))
                self.run_train(self.settings(three, "deepseek_v3", **changes), ("--workers", "3"))
                self.assertEqual(bits(one), bits(three))

    def test_a_rate_of_zero_leaves_the_bits_of_a_run_without_it(self):
        plain, zero = self.directory / "plain", self.directory / "zero"
        self.run_train(self.settings(plain, router_bias_update_rate=None))
        self.run_train(self.settings(zero, router_bias_update_rate=0))
        self.assertEqual(bits(plain), bits(zero))
        for name, value in corrections(self.model).items():
            self.assertEqual(corrections(zero / "final")[name].tolist(), value.tolist())

    def test_bits_are_those_of_the_reference_loop(self):
        for number, changes in enumerate(({}, {"async": True, "rounds_per_step": 2}, {"dtype": "fp32"}, {"freeze": r"layers\.2|gate"})):
            with self.subTest(**changes):
                ours, reference = self.directory / f"ours {number}", self.directory / f"reference {number}"
                run = {"max_grad_norm": 0.5} | changes
                self.run_train(self.settings(ours, **run))
                subprocess.run([os.environ["RP_REFERENCE_TRAIN"], *self.settings(reference, **run)], check=True, capture_output=True,
                               timeout=launched.DEADLINE_S)
                ours, reference = ((folder / "final" / "model.safetensors").read_bytes() for folder in (ours, reference))
                self.assertEqual(ours, reference)

    STEPS, ROWS, LENGTH, LEARNING_RATE = 3, 8, 32, 1e-3

    def write_rows(self, vocabulary: int) -> list[list[int]]:
        """Writes as many rows as a step has, and returns them. They have one token more than a sequence: each is read or predicted, or
        both, and there is no padding."""
        import torch

        rows = torch.randint(0, vocabulary, (self.ROWS, self.LENGTH + 1), generator=torch.Generator().manual_seed(5)).tolist()
        file = TokenFileWriter(vocabulary=vocabulary, eos_token=None, kind="chat")
        for row in rows:
            file.add(row, [1] * len(row))
        file.write(self.directory / "rows.tokens")
        return rows

    def plain_corrections(self, rows: list[list[int]]) -> dict:
        """Trains with transformers and torch.optim.AdamW, and moves the corrections by the choices of transformers' routers."""
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        loads = {}
        for name, module in model.named_modules():
            if hasattr(module, CORRECTION):
                module.register_forward_hook(lambda module, _, output, name=f"{name}.{CORRECTION}": loads.update(
                    {name: output[2].flatten().bincount(minlength=module.num_experts)}))
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.LEARNING_RATE, weight_decay=0)
        ids = torch.tensor(rows)
        for _ in range(self.STEPS):
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            for name, load in loads.items():
                model.get_buffer(name).add_(RATE * (load.double().mean() - load).sign().float())
        return {name: model.get_buffer(name) for name in loads}

    def test_corrections_are_those_of_a_loop_with_transformers(self):
        for family in ("glm4_moe", "deepseek_v3"):
            with self.subTest(family):
                output = self.directory / f"{family} run"
                train = self.settings(output, family, data=self.directory / "rows.tokens", max_steps=self.STEPS, batch_size=self.ROWS,
                                      sequence_length=self.LENGTH, learning_rate=self.LEARNING_RATE, dtype="fp32", no_packing=True)
                rows = self.write_rows(300)
                self.run_train(train)
                found, expected = corrections(output / "final"), self.plain_corrections(rows)
                self.assertEqual(found.keys(), expected.keys())
                for name, value in expected.items():
                    self.assertEqual(found[name].tolist(), value.tolist(), name)

    def test_an_uneven_load_becomes_more_even(self):
        import torch

        def most_loaded(rate: float) -> list[float]:
            output = self.directory / f"rate {rate}"
            self.run_train(self.settings(output, max_steps=30, router_bias_update_rate=rate, learning_rate="1e-4"))
            return [step["most_loaded_expert"] for step in metrics(output)]

        self.settings(self.output)
        first = torch.arange(8) < 3
        change_corrections(self.model, lambda correction: correction + first)  # the scores are below 1
        left_alone, balanced = most_loaded(0), most_loaded(0.05)
        after = sum(balanced[-10:]) / 10
        print(f"most loaded expert, as a multiple of the mean: {balanced[0]:.2f}, in steps 21 to 30 {after:.2f}; without the rate {left_alone[-1]:.2f}")
        self.assertEqual(balanced[0], left_alone[0])
        self.assertGreater(balanced[0], 2.5)  # 8 / 3: all tokens choose it
        self.assertGreater(left_alone[-1], 2.5)
        self.assertLess(after, 2)

    def test_resumed_and_exported_is_uninterrupted(self):
        for mode in MODES:
            with self.subTest(**mode):
                whole, parts, exported = (self.directory / f"{name} {mode}" for name in ("whole", "parts", "exported"))
                changes = mode | {"max_steps": 6}
                self.run_train(self.settings(whole, **changes))
                self.run_train(self.settings(parts, save_every=3, **changes))
                (parts / "final").rename(self.directory / f"old final {mode}")
                (parts / "checkpoint-6").rename(self.directory / f"old checkpoint {mode}")
                self.run_train(self.settings(parts, resume=parts, **changes), ("--workers", "3"))
                self.assertEqual(bits(whole), bits(parts))
                self.assertEqual(state_bits(whole), state_bits(parts))
                self.run_train(["--model", str(self.model), "--export", str(parts), "--output", str(exported)])
                self.assertEqual((exported / "final" / "model.safetensors").read_bytes(), (whole / "final" / "model.safetensors").read_bytes())

    def test_a_checkpoint_without_corrections_is_refused(self):
        self.run_train(self.settings(self.output, router_bias_update_rate=0, save_every=2))
        (self.output / "final").rename(self.directory / "old final")
        self.refused(2, f"--router-bias-update-rate is {RATE}, but", "was saved with 0", untouched=False, model=self.model, max_steps=8,
                     router_bias_update_rate=RATE, resume=self.output)

    def test_processes_that_die_change_no_bit(self):
        for mode in MODES:
            alone = self.directory / f"alone {mode}"
            self.run_train(self.settings(alone, **mode), ("--workers", "1"))
            # Among these are the updates of corrections, which follow those of their layers.
            for place in (*(f"coordinator.update.updates:9:{number}" for number in (3, 4, 9)), "worker.compute.takes_task:9:5"):
                with self.subTest(place, **mode):
                    output = self.directory / f"{place} {mode}"
                    process = self.run_train(self.settings(output, **mode), env=os.environ | {
                        "RP_CRASH_AT": place, "RP_CRASH_ONCE": str(self.directory / f"{place} {mode} crashed")})
                    self.assertIn("again", process.stdout + process.stderr)
                    self.assertEqual(bits(output), bits(alone))

    def test_what_cannot_be_is_refused(self):
        self.refused(2, "corrections of routers", "this model (llama) has none", router_bias_update_rate=RATE)
        self.refused(2, "--router-bias-update-rate", "must be a number from 0 to 1", router_bias_update_rate="nan")
        self.refused(2, "--router-bias-update-rate 0.02", "cannot be combined with LoRA", router_bias_update_rate=RATE, lora_rank=4)


if __name__ == "__main__":
    unittest.main()
