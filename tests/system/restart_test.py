#!/usr/bin/env python3
"""The coordinator of real runs is killed at random times, sometimes while it applies a step. rp-launch starts the program
again, and the runs end with the bits of a run that was left alone, each step reported once, and nothing left behind
(docs/design/restart.md). RP_KILLS: kills in each run; RP_SEED: where the random times begin."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest

from launched import LaunchedTest, bits, coordinator_of, metrics, settings, wait_until_applying, worker_of

KILLS = int(os.environ.get("RP_KILLS", "3"))
SEED = int(os.environ.get("RP_SEED", "21"))
STEPS = 20 + 12 * KILLS
RESTART = ["--max-restarts", "1000"]


class RestartTest(LaunchedTest):
    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)
        self.log = self.directory / "log"

    def start(self, launch: list[str], **changes) -> subprocess.Popen:
        with self.log.open("w") as file:
            process = subprocess.Popen(self.command(settings(self.output, **({"max_steps": STEPS} | changes)), launch), stdout=file, stderr=file)
        self.addCleanup(process.kill)
        return process

    def kill_coordinator(self, process: subprocess.Popen, while_applying: bool) -> int:
        """Returns how many steps were reported before."""
        self.wait_for_steps(process)
        self.assertIsNone(process.poll(), self.log.read_text()[-3000:])
        pid = coordinator_of(process)
        if while_applying:
            wait_until_applying(pid)
        else:
            time.sleep(self.random.uniform(0, 0.1))
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)  # until it is dead
        return len(metrics(self.output))

    def check(self, launch: list[str], kills: int = KILLS, file: str = "model.safetensors", **changes) -> str:
        alone = self.directory / "alone"
        self.run_train(settings(alone, max_steps=STEPS, **changes), ("--workers", "1"))
        process = self.start(launch, **changes)
        reported = [self.kill_coordinator(process, while_applying=number % 2 == 1) for number in range(kills)]
        code = process.wait(timeout=60)
        text = self.log.read_text()
        self.assertEqual(code, 0, f"seed {SEED}\n{text[-3000:]}")
        self.assertEqual(text.count("the program is started again"), kills, text[-3000:])
        went_on = [int(step) for step in re.findall(r"goes on after step (\d+) of", text)]
        self.assertEqual(len(went_on), kills, text[-3000:])
        for step, least in zip(went_on, reported):
            self.assertGreaterEqual(step, least, f"a step that was reported is lost, seed {SEED}\n{text[-3000:]}")
        self.assert_nothing_left()
        self.assertEqual([line["step"] for line in metrics(self.output)], list(range(1, STEPS + 1)), "each step once")
        self.assertEqual(bits(self.output, file), bits(alone, file), f"seed {SEED}")
        return text

    def test_synchronous_steps(self):
        self.check(["--workers", "3", *RESTART])

    def test_asynchronous_steps(self):
        self.check(["--workers", "2", *RESTART], **{"async": True})

    def test_several_rounds_without_clipping(self):
        self.check(["--workers", "2", *RESTART], rounds_per_step=2, max_grad_norm=0)

    def test_adapters_asynchronously_in_several_rounds(self):
        self.check(["--workers", "2", *RESTART], file="adapter_model.safetensors", lora_rank=4, lora_dropout=0.1, rounds_per_step=2,
                   **{"async": True})

    def test_fp16_with_loss_scaling(self):
        self.check(["--workers", "2", *RESTART], dtype="fp16")

    def test_workers_are_killed_too(self):
        alone = self.directory / "alone"
        self.run_train(settings(alone, max_steps=STEPS), ("--workers", "1"))
        process = self.start(["--workers", "3", *RESTART])
        for _ in range(3):
            self.wait_for_steps(process)
            os.kill(worker_of(process), signal.SIGKILL)
            os.kill(coordinator_of(process), signal.SIGKILL)
        self.assertEqual(process.wait(timeout=60), 0, self.log.read_text()[-3000:])
        self.assertEqual(bits(self.output), bits(alone))
        self.assert_nothing_left()

    def test_a_resumed_run_with_evaluations_and_checkpoints(self):
        changes = {"eval_share": "0.2", "eval_every": 5, "save_every": 10}
        alone = self.directory / "alone"
        self.run_train(settings(alone, max_steps=STEPS, **changes), ("--workers", "1"))
        self.run_train(settings(self.output, **changes, max_steps=10), ("--workers", "1"))
        shutil.rmtree(self.output / "final")  # as if the run had been stopped
        process = self.start(["--workers", "2", *RESTART], resume="auto", **changes)
        for _ in range(KILLS):
            self.kill_coordinator(process, while_applying=False)
        self.assertEqual(process.wait(timeout=60), 0, self.log.read_text()[-3000:])
        self.assertEqual(bits(self.output), bits(alone))
        for name in ("evaluations.jsonl",):
            lines = [[line.split('"seconds"')[0] for line in (run / name).read_text().splitlines()] for run in (alone, self.output)]
            self.assertEqual(lines[1], lines[0])
        self.assert_checkpoints(every=10)
        self.assert_nothing_left()

    def assert_checkpoints(self, every: int) -> None:
        """Checks that each checkpoint that was due is there, or that of a step soon after it (docs/train.md)."""
        saved = [int(path.name.removeprefix("checkpoint-")) for path in self.output.glob("checkpoint-*")]
        for step in range(every, STEPS + 1, every):
            self.assertTrue({step, step + 1, step + 2} & set(saved), f"{step} of {sorted(saved)}, seed {SEED}")

    def test_checkpoints_that_were_being_written(self):
        """The coordinator is killed while it writes checkpoints, which are also those of the best evaluations."""
        changes = {"eval_share": "0.2", "eval_every": 4, "save_every": 4}
        alone = self.directory / "alone"
        self.run_train(settings(alone, max_steps=STEPS, **changes), ("--workers", "1"))
        process = self.start(["--workers", "2", *RESTART], final_model="best", **changes)
        cut_off = 0
        for _ in range(KILLS):
            self.wait_for_steps(process)
            while process.poll() is None and not list(self.output.glob(".checkpoint-*.partial-*")):
                time.sleep(0.0005)
            os.kill(coordinator_of(process), signal.SIGKILL)
            cut_off += bool(list(self.output.glob(".checkpoint-*.partial-*")))
        self.assertEqual(process.wait(timeout=60), 0, self.log.read_text()[-3000:])
        self.assertGreater(cut_off, 0)
        self.assert_checkpoints(every=4)
        self.assertEqual(list(self.output.glob(".checkpoint-*")), [])
        lines = [(run / f"checkpoint-{STEPS}" / "XXH128SUMS").read_text().splitlines() for run in (alone, self.output)]
        self.assertEqual(*[[line for line in each if "safetensors" in line] for each in lines])
        self.assert_nothing_left()

    def test_a_signal_after_a_restart_ends_the_run_with_a_checkpoint(self):
        process = self.start(["--workers", "2", *RESTART], max_steps=None, epochs=1000)
        self.kill_coordinator(process, while_applying=False)
        self.wait_for_steps(process, 2)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 75, self.log.read_text()[-3000:])
        self.assertTrue(list(self.output.glob("checkpoint-*")))
        self.assert_nothing_left()

    def test_restarts_end_with_their_number(self):
        process = self.start(["--workers", "2", "--max-restarts", "1"])
        for _ in range(2):
            self.kill_coordinator(process, while_applying=False)
        self.assertEqual(process.wait(timeout=60), 137, self.log.read_text()[-3000:])
        self.assertEqual(self.log.read_text().count("the program is started again"), 1)
        self.assert_nothing_left()

    def test_without_restarts_the_run_ends(self):
        process = self.start(["--workers", "2", "--on-coordinator-failure", "abort"])
        self.kill_coordinator(process, while_applying=False)
        self.assertEqual(process.wait(timeout=60), 137)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
