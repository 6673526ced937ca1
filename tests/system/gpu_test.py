"""A run on GPUs prints one clear message with a remedy if there is no GPU, never an error of the loader."""

import ctypes
import os
import subprocess
import sys
import unittest

from launched import DEADLINE_S, PROGRAMS, LaunchedTest, settings


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
        return True
    except OSError:
        return False


@unittest.skipIf(has_driver(), "this machine has a driver for GPUs")
class NoGpuTest(LaunchedTest):
    def test_rp_launch_starts_nothing(self):
        for launch in ("--gpus", "1"), ("--gpus", "all"), ("--device", "cuda"):
            process = self.run_train(settings(self.output), launch=launch, expect=69)
            self.assertIn("no CUDA device", process.stderr)
            self.assertIn("--device cpu", process.stderr)
            self.assertEqual(len(process.stderr.strip().splitlines()), 1, process.stderr)

    def test_the_plug_in_loads_and_says_what_is_missing(self):
        """Without rp-launch the program itself reports the problem."""
        process = subprocess.run([str(PROGRAMS / "train"), *settings(self.output)], capture_output=True, text=True, timeout=DEADLINE_S,
                                 env=os.environ | {"RP_DEVICE": "cuda"})
        self.assertEqual(process.returncode, 69, process.stdout[-2000:] + process.stderr[-2000:])
        message = process.stderr.strip().splitlines()[-1]
        self.assertIn("no CUDA device: the NVIDIA driver's library libcuda.so.1 is not there", message)
        self.assertIn("--device cpu", message)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
