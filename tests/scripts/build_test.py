#!/usr/bin/env python3
"""scripts/build.sh configures the requested targets, whatever the folder was configured for before. Uses a copy of the
sources."""

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


class BuildTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-build-")
        self.addCleanup(directory.cleanup)
        self.copy = Path(directory.name) / "roundpipe"
        shutil.copytree(SOURCE, self.copy, ignore=lambda folder, names: {"golden"} | ({".git", ".venv", "build", "run"} if Path(folder) == SOURCE else set()))

    def build(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(["scripts/build.sh", *words], cwd=self.copy, capture_output=True, text=True, timeout=120)

    def targets(self, *words: str) -> str:
        """Returns the targets that exist after build.sh with these arguments. Nothing is compiled."""
        process = self.build(*words, "help")
        self.assertEqual(process.returncode, 0, process.stderr)
        return process.stdout

    def test_a_build_without_tests_leaves_none_out_of_the_next(self):
        self.assertNotIn("launcher_test", self.targets("tsan", "--no-tests"))
        self.assertIn("launcher_test", self.targets("tsan"))
        self.assertNotIn("dispatch_overhead", self.targets("tsan"), "sanitizers build no benchmarks")

    def test_without_libtorch_the_message_says_what_to_run(self):
        process = self.build("release", "help")
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("run scripts/setup.sh", process.stderr)
        self.assertNotIn("list", process.stderr)


if __name__ == "__main__":
    unittest.main()
