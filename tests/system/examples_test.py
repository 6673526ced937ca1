#!/usr/bin/env python3
"""The examples print the same losses however they are run."""

import os
import re
import subprocess
import unittest
from pathlib import Path

PROGRAMS = Path(os.environ["RP_PROGRAMS"])


class ExamplesTest(unittest.TestCase):
    def losses(self, *command: str) -> list[str]:
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual((process.returncode, process.stderr), (0, ""), process.stdout)
        return re.findall(r"loss.*", process.stdout)

    def test_minimal_gives_the_same_losses_with_1_and_2_workers_and_without_rp_launch(self):
        program, launch = str(PROGRAMS / "minimal"), str(PROGRAMS / "rp-launch")
        alone = self.losses(program)
        self.assertGreater(len(alone), 3)
        self.assertGreater(len(set(alone)), 3, "the losses change")
        self.assertEqual(self.losses(launch, "--workers", "1", program), alone)
        self.assertEqual(self.losses(launch, "--workers", "2", program), alone)


if __name__ == "__main__":
    unittest.main()
