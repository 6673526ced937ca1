#!/usr/bin/env python3
"""Many runs start on one machine at the same time, with stores in /dev/shm and in anonymous files. None disturbs another, also
if some of them are killed. RP_LAUNCHES: how many."""

import os
import random
import signal
import subprocess
import time
import unittest

from launched import LaunchedTest, bits, processes_of, settings

LAUNCHES = int(os.environ.get("RP_LAUNCHES", "8"))
PATIENCE_S = 60 + 10 * LAUNCHES


class LaunchesAtOnceTest(LaunchedTest):
    def test_none_disturbs_another(self):
        rng = random.Random(20)
        changes = {"max_steps": 6, "save_every": "never"}
        self.run_train(settings(self.directory / "alone", **changes), ("--workers", "2"))
        expected = bits(self.directory / "alone")
        outputs = [self.directory / f"run-{i}" for i in range(LAUNCHES)]
        launch = [["--workers", "1", "--store", ("shm", "memfd")[i % 2], "--attach-timeout", str(PATIENCE_S)] for i in range(LAUNCHES)]
        logs = [(self.directory / f"log-{i}").open("w+") for i in range(LAUNCHES)]
        runs = [subprocess.Popen(self.command(settings(output, **changes), options), stdout=log, stderr=log)
                for output, options, log in zip(outputs, launch, logs, strict=True)]
        killed = set(rng.sample(range(LAUNCHES), LAUNCHES // 4))
        for i in killed:
            while len(processes_of(runs[i])) < 1 and runs[i].poll() is None:
                time.sleep(0.01)
            runs[i].send_signal(signal.SIGKILL)
        for i, run in enumerate(runs):
            code = run.wait(timeout=PATIENCE_S)
            logs[i].seek(0)
            text = logs[i].read()
            logs[i].close()
            if i in killed:
                self.assertEqual(code, -signal.SIGKILL, text)
            else:
                self.assertEqual((i, code), (i, 0), text)
                self.assertEqual(bits(outputs[i]), expected)
        self.assert_nothing_left(within_s=2)


if __name__ == "__main__":
    unittest.main()
