#!/usr/bin/env python3
"""Nothing grows from step to step: in a long run of many small steps, memory and the number of descriptors stay
constant."""

import os
import subprocess
import time
import unittest
from pathlib import Path

from launched import LaunchedTest, children, settings

STEPS = 3000


def usage_of_children(pid: int) -> tuple[int, int]:
    """Returns the resident bytes and the number of descriptors of a process and its children."""
    resident = descriptors = 0
    for process in [pid, *children(pid)]:
        resident += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        descriptors += len(list(Path(f"/proc/{process}/fd").iterdir()))
    return resident, descriptors


class LongRunTest(LaunchedTest):
    def check(self, **changes):
        process = subprocess.Popen(self.command(settings(self.output, max_steps=STEPS, **changes), ["--workers", "4"]),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        usage = {}
        deadline = time.monotonic() + 600
        for line in process.stdout:
            self.assertLess(time.monotonic(), deadline)
            for step in (STEPS // 5, STEPS - 20):
                if line.startswith("step") and f" {step}/{STEPS} " in line:
                    usage[step] = usage_of_children(process.pid)
        self.assertEqual(process.wait(timeout=60), 0)
        (early_bytes, early_fds), (late_bytes, late_fds) = usage[STEPS // 5], usage[STEPS - 20]
        print(f"{changes}: {early_bytes >> 20} MiB and {early_fds} descriptors early, {late_bytes >> 20} MiB and {late_fds} late")
        self.assertEqual(late_fds, early_fds)
        self.assertLess(late_bytes, 1.02 * early_bytes)

    def test_sync(self):
        self.check()

    def test_async_with_several_rounds_a_step(self):
        self.check(rounds_per_step=2, **{"async": True})


if __name__ == "__main__":
    unittest.main()
