#!/usr/bin/env python3
"""Runs that end while a checkpoint is being written to a slow disk: the checkpoint is completed, or nothing of it is
left, and the user is informed."""

import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from launched import ABORT, DEADLINE_S, PROGRAMS, LaunchedTest, settings, worker_of

# Every write of the coordinator takes 50 ms longer, so a checkpoint takes some seconds.
SLOW_WRITES = {"LD_PRELOAD": str(PROGRAMS.parent / "tests" / "libfailing_calls.so"), "CHAOS_PROCESS": "coordinator", "CHAOS_CALL": "write",
               "CHAOS_FAULT": "slow", "CHAOS_INDEX": "1", "CHAOS_TIMES": "1000000"}
FIRST = 10  # the step of the first checkpoint


class SlowDiskTest(LaunchedTest):
    def start_saving(self) -> subprocess.Popen:
        """Starts a run of many steps and waits until it has begun to write its first checkpoint."""
        words = self.command(settings(self.output, max_steps=10000, save_every=FIRST), ["--workers", "2", *ABORT])
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ, **SLOW_WRITES))
        self.addCleanup(process.kill)
        end = time.monotonic() + DEADLINE_S
        while not list(self.output.glob("*.partial-*/state.safetensors")):
            self.assertLess(time.monotonic(), end, "no checkpoint is begun")
            self.assertIsNone(process.poll(), "the run has ended")
            time.sleep(0.01)
        time.sleep(0.5)  # long enough for another step, after which the numbers of the saved step are known
        return process

    def test_a_slow_checkpoint_is_no_hang(self):
        words = self.command(settings(self.output, max_steps=FIRST + 2, save_every=FIRST), ["--workers", "2", "--wait-timeout", "1"])
        process = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ, **SLOW_WRITES), timeout=2 * DEADLINE_S)
        self.assertEqual((process.returncode, process.stderr), (0, ""))
        seconds = [float(each) for each in re.findall(r"checkpoint of step \d+ written to \S+ in ([\d.]+) s", process.stdout)]
        self.assertEqual(len(seconds), 2, process.stdout[-1000:])
        self.assertGreater(min(seconds), 3, "the disk was too fast for this test")

    def directories(self):
        return [path.name for path in self.output.iterdir() if path.is_dir()]

    def test_a_lost_worker_does_not_cost_the_checkpoint(self):
        process = self.start_saving()
        os.kill(worker_of(process), signal.SIGKILL)
        start = time.monotonic()
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertGreater(time.monotonic() - start, 2, "the disk was too fast for this test")
        self.assertEqual(process.returncode, 137, err)
        self.assertEqual(self.directories(), [f"checkpoint-{FIRST}"], err)
        self.assertEqual(out.count(f"the run has failed; the checkpoint of step {FIRST} is still being written; Ctrl-C twice gives it up"), 1, out[-1000:])
        lost = rf"(?s)worker \d .*SIGKILL.*^train: the run ends after step \d+[^\n]* lost: go on from {self.output}/checkpoint-{FIRST} with --resume auto$"
        self.assertRegex(err, re.compile(lost, re.M))
        self.assert_nothing_left()

    def test_a_second_int_gives_it_up(self):
        for is_lost in (True, False):
            process = self.start_saving()
            if is_lost:
                os.kill(worker_of(process), signal.SIGKILL)
                time.sleep(1.5)  # without the writes, rp-launch would have ended it by now
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            start = time.monotonic()
            _, err = process.communicate(timeout=DEADLINE_S)
            self.assertLess(time.monotonic() - start, 2)
            self.assertEqual(process.returncode, 137 if is_lost else 130, err)
            self.assertIn("train: writing the checkpoint that was under way; Ctrl-C again ends at once\n" if is_lost else ", then a checkpoint; Ctrl-C again", err)
            self.assertEqual(self.directories(), [], err)
            self.assert_nothing_left()
            shutil.rmtree(self.output)


if __name__ == "__main__":
    unittest.main()
