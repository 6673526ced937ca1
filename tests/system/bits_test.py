#!/usr/bin/env python3
"""Losses, weights, moments, buffers and outputs are the same for any number of workers, grain of recompute and plan.
The models are the digits network of the example (buffers, dropout), a Llama (tied embeddings), the example's two
models, and a model that saves its routing for the recompute. bits_program prints the values that are compared."""

import itertools
import os
import subprocess
import unittest
from pathlib import Path

from launched import GPU, on_device

PROGRAMS = Path(os.environ["RP_PROGRAMS"])
PROGRAM = os.environ["RP_BITS_PROGRAM"]
LLAMA = Path(os.environ["RP_TINY_MODEL"]) / "model"
DEADLINE_S = 60

MODELS = ("digits", "llama", "two_models", "routing")
WORKERS = (1, 2, 3, 4, 8)
GRAINS = ("stage", "layer")
PLANS = ("automatic", "stages", "layers")


def run(grain: str, plans: str, model: str = "", launch: tuple = ()) -> dict[str, list[str]]:
    """Returns the output of a run by model. All models are in one session if no model is given."""
    launcher = [PROGRAMS / "rp-launch", *on_device([*map(str, launch)])] if launch else []
    command = [*launcher, PROGRAM, grain, plans, LLAMA, *([model] if model else [])]
    process = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    if process.returncode != 0:
        raise AssertionError(f"{command}: exit code {process.returncode}\n{process.stderr[-2000:]}")
    lines = {}
    for line in process.stdout.splitlines():
        lines.setdefault(line.split(":")[0], []).append(line)
    return lines


class BitsTest(unittest.TestCase):
    """All models in one session: every number of workers with every plan and with both grains, and every plan with
    both grains."""

    @classmethod
    def setUpClass(cls):
        # Runs without rp-launch, except on a GPU, which only rp-launch can provide.
        cls.expected = run("stage", "automatic", launch=("--workers", 1) if GPU else ())

    def test_a_run_prints_what_is_to_be_compared(self):
        self.assertEqual(tuple(self.expected), MODELS)
        for model, lines in self.expected.items():
            losses = [line.split()[3] for line in lines if line.startswith(f"{model}: loss ")]
            self.assertGreater(len(losses), 7)
            self.assertEqual(len(set(losses)), len(losses), "every loss is another one")
            states = [line.split()[3:] for line in lines if line.startswith(f"{model}: parameter ")]
            self.assertGreater(len(states), 3)
            self.assertEqual(len({hash for state in states for hash in state[1:]}), 3 * len(states), "every tensor is another one")
        self.assertEqual(sum(line.startswith("digits: buffer ") for line in self.expected["digits"]), 21)
        self.assertEqual(sum(line.startswith("digits: scores ") for line in self.expected["digits"]), 2)

    def same_bits(self, workers: int):
        for i, plans in enumerate(PLANS):
            grain = GRAINS[(WORKERS.index(workers) + i) % 2]
            with self.subTest(workers=workers, grain=grain, plans=plans):
                lines = run(grain, plans, launch=("--workers", workers))
                for model in MODELS:
                    self.assertEqual(lines[model], self.expected[model])

    def test_1_worker(self):
        self.same_bits(1)

    def test_2_workers(self):
        self.same_bits(2)

    def test_3_workers(self):
        self.same_bits(3)

    def test_4_workers(self):
        self.same_bits(4)

    def test_8_workers(self):
        self.same_bits(8)


class AloneTest(unittest.TestCase):
    """Each model in its own session, in every combination: the results do not depend on other models in the
    session."""

    def same_bits(self, model: str):
        expected = {model: run("stage", "automatic")[model]}
        self.assertEqual(run("stage", "automatic", model), expected, "without rp-launch")
        for workers, grain, plan in itertools.product(WORKERS, GRAINS, PLANS):
            with self.subTest(workers=workers, grain=grain, plans=plan):
                self.assertEqual(run(grain, plan, model, ("--workers", workers)), expected)

    def test_digits(self):
        self.same_bits("digits")

    def test_llama(self):
        self.same_bits("llama")

    def test_two_models(self):
        self.same_bits("two_models")

    def test_routing(self):
        self.same_bits("routing")


if __name__ == "__main__":
    unittest.main()
