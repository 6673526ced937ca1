#!/usr/bin/env python3
"""Packed sequences have the same loss as padded ones, with any number of microbatches and workers."""

import sys
import unittest
from pathlib import Path

from launched import LaunchedTest, SAMPLE, bits, metrics, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from token_file import TokenFileWriter  # noqa: E402

LENGTH = 32
# Number of positions of each document. First fit decreasing packs them into 8 sequences of 32:
# 30+2, 28+4, 26+6, 24+8, 20+12, 18+14, 16+16, 10+9.
POSITIONS = [30, 28, 26, 24, 20, 18, 16, 16, 14, 12, 10, 9, 8, 6, 4, 2]
NUM_PACKED = 8
TOLERANCE = 1e-6


class PackingTest(LaunchedTest):
    def setUp(self):
        super().setUp()
        writer = TokenFileWriter(vocabulary=64, eos_token=None, kind="chat")
        for number, positions in enumerate(POSITIONS):
            tokens = [(7 * number + 3 * i * i) % 60 + 1 for i in range(positions + 1)]
            writer.add(tokens, [int(i % 3 != number % 3) for i in range(positions + 1)])
        self.data = self.directory / "documents.tokens"
        writer.write(self.data)

    def losses(self, name: str, workers: int = 1, **changes) -> list[float]:
        """Returns the losses of a run in which every step uses all documents."""
        output = self.directory / name
        self.run_train(settings(output, data=self.data, dtype="fp32", sequence_length=LENGTH, max_steps=3, save_every="never", **changes),
                       launch=("--workers", str(workers)))
        return [step["loss"] for step in metrics(output)]

    def assert_same(self, losses: list[float], expected: list[float]):
        for loss, other in zip(losses, expected, strict=True):
            self.assertAlmostEqual(loss / other, 1, delta=TOLERANCE)

    def test_the_loss_does_not_depend_on_packing_microbatches_or_workers(self):
        expected = self.losses("padded", no_packing=True, batch_size=len(POSITIONS), num_microbatches=1)
        self.assertLess(expected[2], expected[0] - 0.01)
        for microbatches in range(1, NUM_PACKED + 1):
            for packed in (True, False):
                workers = (microbatches + 2 * packed) % 4 + 1
                with self.subTest(microbatches=microbatches, packed=packed, workers=workers):
                    kind = {"batch_size": NUM_PACKED} if packed else {"batch_size": len(POSITIONS), "no_packing": True}
                    self.assert_same(self.losses(f"{packed}-{microbatches}", workers, num_microbatches=microbatches, **kind), expected)

    def test_bits_of_packed_runs_do_not_depend_on_the_workers(self):
        runs = []
        for workers in (1, 2, 3, 4):
            output = self.directory / f"workers-{workers}"
            self.run_train(settings(output, data=self.data, batch_size=NUM_PACKED, sequence_length=LENGTH), launch=("--workers", str(workers)))
            runs.append(bits(output))
        self.assertEqual(runs, [runs[0]] * 4)

    def test_numbers_distinguish_trained_real_and_padded_tokens(self):
        output = self.directory / "counts"
        self.run_train(settings(output, data=self.data, batch_size=NUM_PACKED, sequence_length=LENGTH, max_steps=1))
        step = metrics(output)[0]
        self.assertEqual(step["tokens"], sum(POSITIONS))
        self.assertEqual(step["padded_tokens"], NUM_PACKED * LENGTH - sum(POSITIONS))
        self.assertEqual(step["trained_tokens"], sum(int(i % 3 != number % 3) for number, positions in enumerate(POSITIONS) for i in range(1, positions + 1)))


if __name__ == "__main__":
    unittest.main(verbosity=1)
