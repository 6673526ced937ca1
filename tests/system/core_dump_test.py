#!/usr/bin/env python3
"""Crashes with core dumps enabled: the run ends soon, and the core is small because it does not contain the store."""

import os
import re
import resource
import signal
import subprocess
import time
import unittest
from pathlib import Path

from launched import ABORT, DEADLINE_S, LaunchedTest, coordinator_of, make_model, settings, worker_of

CORE_PATTERN = Path("/proc/sys/kernel/core_pattern").read_text()


class CoreDumpTest(LaunchedTest):
    def crash(self, find, model: Path, **variables):
        """Crashes the process that `find` returns after the run's first step. Returns the size of the run's store in
        MiB, and the seconds until the run ended."""
        output = self.directory / "-".join([find.__name__, *variables])
        limit = resource.RLIM_INFINITY
        process = subprocess.Popen(self.command(settings(output, model=model, max_steps=1000, save_every="never"), ["--workers", "2", *ABORT]),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.directory, env=dict(os.environ, **variables),
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (limit, limit)))
        self.addCleanup(process.kill)
        header = ""
        while not (line := next(process.stdout)).startswith("step "):
            header += line
        start = time.monotonic()
        os.kill(find(process), signal.SIGSEGV)
        _, err = process.communicate(timeout=DEADLINE_S)
        seconds = time.monotonic() - start
        self.assertEqual(process.returncode, 128 + signal.SIGSEGV, err)
        self.assert_nothing_left()
        return int(re.search(r"(?m)^ *total +(\d+) MiB", header)[1]), seconds

    def test_the_run_ends_soon_and_the_store_is_left_out(self):
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        if hard != resource.RLIM_INFINITY and os.geteuid() != 0:
            self.skipTest("core dumps are limited here")
        model = make_model(self.directory / "model", hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8,
                           num_key_value_heads=8)
        for find in (worker_of, coordinator_of):
            with self.subTest(find.__name__):
                store_mib, seconds = self.crash(find, model)
                self.assertLess(seconds, 2, "from the crash to the end of the run")
                self.assertGreater(store_mib, 350)
                if CORE_PATTERN.startswith(("|", "/")):
                    continue  # another program or folder receives the core
                cores = list(self.directory.glob("core*"))
                self.assertEqual(len(cores), 1)
                self.assertLess(cores[0].stat().st_blocks * 512 / 2**20, store_mib / 2)
                cores[0].unlink()
        self.crash(coordinator_of, model, RP_CORE="full")
        for core in self.directory.glob("core*"):
            self.assertGreater(core.stat().st_blocks * 512 / 2**20, store_mib)


if __name__ == "__main__":
    unittest.main()
