#!/usr/bin/env python3
"""The result of a run depends only on its settings: not on workers, prefetch or plan, and not on interruptions. One
thread per worker, uneven microbatches."""

import re
import unittest

from launched import LaunchedTest, bits, metrics, settings

PLANS = {
    "one_stage": "fused 0-7",
    "even": "forward 0-2 3-5 | fused 6-7 | backward 3-5 0-2",
    "layer_by_layer": "forward 0-0 1-1 2-4 5-6 | fused 7-7 | backward 6-6 4-5 1-3 0-0",
}


class BitsTest(LaunchedTest):
    def result(self, launch: list, **changes):
        """Returns the losses and the model of one run."""
        output = self.directory / "-".join(["run", *map(str, launch)]).replace("/", "_")
        self.run_train(settings(output, **changes), launch)
        return bits(output)

    def matrix(self, workers: int, **changes):
        reference = self.result(["--workers", 1, "--prefetch", 0], **changes)
        self.assertEqual(len(reference[0]), 4)
        for name, text in PLANS.items():
            plan = self.directory / f"{name}.plan"
            plan.write_text(text + "\n")
            for prefetch in (0, 1):
                with self.subTest(workers=workers, plan=name, prefetch=prefetch, **changes):
                    launch = ["--workers", workers, "--prefetch", prefetch, "--plan", plan]
                    self.assertEqual(self.result(launch, **changes), reference)

    def run_train(self, train, launch=("--workers", "2"), expect=0, **options):
        return super().run_train(train, tuple(map(str, launch)), expect, **options)


def add_matrix_tests():
    for workers in (1, 2, 3, 4, 8):
        for mode, changes in {"sync": {}, "async": {"async": True}}.items():
            def test(self, workers=workers, changes=changes):
                self.matrix(workers, **changes)
            setattr(BitsTest, f"test_{mode}_{workers}_workers", test)


add_matrix_tests()


class SettingsBitsTest(LaunchedTest):
    def pair(self, **changes):
        """Runs with the same settings on 1 and on 3 workers."""
        self.run_train(settings(self.directory / "a", **changes), ("--workers", "1"))
        self.run_train(settings(self.directory / "b", **changes), ("--workers", "3"))
        self.assertEqual(bits(self.directory / "a"), bits(self.directory / "b"))

    def test_several_rounds_a_step(self):
        self.pair(rounds_per_step=2)
        self.assertEqual(metrics(self.directory / "a")[0]["step"], 1)

    def test_several_rounds_a_step_async(self):
        self.pair(rounds_per_step=2, **{"async": True})

    def test_warm_up(self):
        cold = self.run_train(settings(self.directory / "a"), ("--workers", "3", "--warm-up", "0"))
        warm = self.run_train(settings(self.directory / "b"), ("--workers", "3", "--warm-up", "1"))
        self.assertEqual(bits(self.directory / "a"), bits(self.directory / "b"))
        self.assertNotIn("warm-up: ", cold.stdout)
        self.assertRegex(warm.stdout, r"warm-up: \d+\.\d\d s, before step 1")

    def test_fp32(self):
        self.pair(dtype="fp32")

    def test_fp16(self):
        self.pair(dtype="fp16")

    def test_fp16_async(self):
        self.pair(dtype="fp16", **{"async": True})

    def test_schedule_decay_and_no_clipping(self):
        self.pair(lr_schedule="cosine", warmup_steps=2, weight_decay=0.1, max_grad_norm=0)
        self.assertEqual([round(m["lr"], 12) for m in metrics(self.directory / "a")], [0.0005, 0.001, 0.001, 0.0005])

    def test_recompute_by_layer_changes_no_bit(self):
        for mode in ({}, {"async": True}):
            with self.subTest(**mode):
                by_stage, by_layer = (self.directory / "-".join([name, *mode]) for name in ("stage", "layer"))
                self.run_train(settings(by_stage, **mode), ("--workers", "2"))
                self.run_train(settings(by_layer, recompute_grain="layer", **mode), ("--workers", "3"))
                self.assertEqual(bits(by_stage), bits(by_layer))

    def test_the_check_of_consistency_finds_nothing_and_changes_no_bit(self):
        for mode in ({}, {"async": True}, {"rounds_per_step": 2}):
            with self.subTest(**mode):
                plain, checked = (self.directory / "-".join([name, *mode]) for name in ("plain", "checked"))
                self.run_train(settings(plain, **mode), ("--workers", "2"))
                self.run_train(settings(checked, **mode), ("--workers", "3", "--check-consistency"))
                self.assertEqual(bits(plain), bits(checked))

    def test_without_rp_launch(self):
        self.run_train(settings(self.directory / "a"))
        self.command = lambda train, launch: [str(__import__("launched").PROGRAMS / "train"), *train]
        self.run_train(settings(self.directory / "b"))
        self.assertEqual(bits(self.directory / "a"), bits(self.directory / "b"))

    def test_the_first_loss_does_not_depend_on_microbatches_or_rounds(self):
        first = []
        for place, changes in {"a": {"num_microbatches": 1}, "b": {"num_microbatches": 8}, "c": {"num_microbatches": 1, "rounds_per_step": 4}}.items():
            self.run_train(settings(self.directory / place, dtype="fp32", max_steps=1, **changes))
            first.append(metrics(self.directory / place)[0]["loss"])
        self.assertAlmostEqual(first[0], first[1], delta=1e-5)
        self.assertAlmostEqual(first[0], first[2], delta=1e-5)

    def test_only_speed_and_the_memory_of_rings_depend_on_the_workers(self):
        headers = []
        for workers in ("1", "3"):
            output = self.directory / workers
            text = self.run_train(settings(output), ("--workers", workers)).stdout.replace(str(output), "OUTPUT")
            header = text[:text.index("\nstep ")].splitlines()
            headers.append([line for line in header if not re.match(r"speed:|  (control|total) ", line)])
            self.assertEqual(len(header), len(headers[-1]) + 3)
        self.assertEqual(headers[0], headers[1])


class ResumeTest(LaunchedTest):
    def resumed_equals_uninterrupted(self, **changes):
        whole, parts = self.directory / "whole", self.directory / "parts"
        self.run_train(settings(whole, max_steps=6, **changes))
        self.run_train(settings(parts, max_steps=6, save_every=3, **changes))
        self.assertEqual(bits(whole), bits(parts))
        # As if the machine had failed after step 4: the metrics have two more lines than at the
        # checkpoint.
        (parts / "final").rename(self.directory / "old_final")
        checkpoints = sorted(p.name for p in parts.glob("checkpoint-*"))
        self.assertEqual(checkpoints, ["checkpoint-3", "checkpoint-6"])
        (parts / "checkpoint-6").rename(self.directory / "old_checkpoint")
        lines = (parts / "metrics.jsonl").read_text().splitlines()
        (parts / "metrics.jsonl").write_text("\n".join(lines[:5]) + "\n" + lines[5][:20])
        self.run_train(settings(parts, max_steps=6, resume=parts, **changes), ("--workers", "3"))
        self.assertEqual([m["step"] for m in metrics(parts)], [1, 2, 3, 4, 5, 6])
        self.assertEqual(bits(whole), bits(parts))

    def test_sync(self):
        self.resumed_equals_uninterrupted()

    def test_async(self):
        self.resumed_equals_uninterrupted(**{"async": True})

    def test_fp32_and_several_rounds(self):
        self.resumed_equals_uninterrupted(dtype="fp32", rounds_per_step=2)

    def test_into_another_output(self):
        first, second = self.directory / "first", self.directory / "second"
        self.run_train(settings(first, max_steps=4, save_every=2))
        self.run_train(settings(second, max_steps=4, resume=first / "checkpoint-2"))
        self.assertEqual([m["step"] for m in metrics(second)], [3, 4])
        self.assertEqual(bits(first)[1], bits(second)[1])


if __name__ == "__main__":
    unittest.main()
