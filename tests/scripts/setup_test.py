#!/usr/bin/env python3
"""scripts/setup.sh ends with a PyTorch that can be imported, whatever the CUDA toolkit contains. Its programs are
stand-ins that record how they are called. PyTorch's own Python packages must be installed before PyTorch is tried."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
STAND_IN = """#!/bin/bash
echo "$*" >>"$CALLS"
[[ $* != "-c import torch" ]] || [[ -n $TOOLKIT_SUFFICES ]] || grep -v -e --no-deps "$CALLS" | grep -q torch==
"""


class SetupTest(unittest.TestCase):
    def calls(self, toolkit: bool, suffices: bool) -> list[str]:
        """Returns those calls of .venv/bin/python in a first run of setup.sh that concern torch."""
        with tempfile.TemporaryDirectory(prefix="rp-setup-") as name:
            root = Path(name)
            for file in ("scripts/setup.sh", "tools/requirements.txt"):
                (root / file).parent.mkdir(exist_ok=True)
                shutil.copy(SOURCE / file, root / file)
            for program, text in ((".venv/bin/python", STAND_IN), ("bin/dpkg-query", "#!/bin/sh\necho installed\n")):
                path = root / program
                path.parent.mkdir(parents=True)
                path.write_text(text)
                path.chmod(0o755)
            if toolkit:
                (root / "cuda" / "lib64").mkdir(parents=True)
            environment = os.environ | {"PATH": f"{root}/bin:{os.environ['PATH']}", "CUDA_HOME": str(root / "cuda"),
                                        "CALLS": str(root / "calls"), "TOOLKIT_SUFFICES": "1" if suffices else ""}
            process = subprocess.run([root / "scripts/setup.sh"], env=environment, capture_output=True, text=True, timeout=60)
            self.assertEqual(process.returncode, 0, process.stderr)
            lines = (root / "calls").read_text().splitlines()
            self.assertLess(next(i for i, line in enumerate(lines) if "--requirement" in line), lines.index("-c import torch"))
            return [line for line in lines if "torch" in line]

    def test_a_toolkit_that_suffices_saves_the_wheels_cuda_packages(self):
        calls = self.calls(toolkit=True, suffices=True)
        self.assertIn("--no-deps torch==", calls[0])
        self.assertEqual(calls[1:], ["-c import torch"])

    def test_a_toolkit_that_lacks_libraries_is_filled_up_by_the_wheels_own(self):
        calls = self.calls(toolkit=True, suffices=False)
        self.assertIn("--no-deps torch==", calls[0])
        self.assertIn("install", calls[2])
        self.assertNotIn("--no-deps", calls[2])

    def test_without_a_toolkit_torch_comes_with_all_it_needs(self):
        calls = self.calls(toolkit=False, suffices=False)
        self.assertEqual([call for call in calls if "--no-deps" in call], [])
        self.assertIn("torch==", calls[1])


if __name__ == "__main__":
    unittest.main()
