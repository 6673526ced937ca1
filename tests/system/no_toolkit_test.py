#!/usr/bin/env python3
"""Without a CUDA toolkit, everything except the CUDA plug-in is built and runs. The toolkit's folders are hidden by
empty file systems in a mount namespace, and a new build is made and used there."""

import os
import subprocess
import unittest
from pathlib import Path

import launched
from launched import LaunchedTest, metrics, settings

SOURCE = Path(__file__).resolve().parents[2]
HIDE = 'for place in /usr/local/cuda*; do [ -d "$place" ] && { mount -t tmpfs -o size=4k rp-test "$(readlink -f "$place")" || exit 99; }; done; '
BUILD_DEADLINE_S = 1800


class NoToolkitTest(LaunchedTest):
    def hidden(self, *command: str, deadline_s: int) -> subprocess.CompletedProcess:
        path = ":".join(word for word in os.environ["PATH"].split(":") if "cuda" not in word)
        environment = {name: value for name, value in os.environ.items() if "CUDA" not in name} | {"PATH": path}
        process = subprocess.run(["unshare", "--mount", "bash", "-c", HIDE + '"$@"', "bash", *command], capture_output=True,
                                 text=True, timeout=deadline_s, env=environment)
        if process.returncode == 99 or "unshare:" in process.stderr:
            self.skipTest("needs the right to mount: " + process.stderr)
        self.assertEqual(process.returncode, 0, process.stdout[-3000:] + process.stderr[-3000:])
        return process

    def test_builds_and_trains(self):
        self.assertEqual(self.hidden("bash", "-c", "nvcc --version || echo none", deadline_s=10).stdout, "none\n")
        build = self.directory / "build"
        self.hidden("cmake", "-S", str(SOURCE), "-B", str(build), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", deadline_s=300)
        self.hidden("cmake", "--build", str(build), deadline_s=BUILD_DEADLINE_S)
        launch = [str(build / "bin" / "rp-launch"), "--workers", "2", "train", *settings(self.output)]
        self.hidden(*launch, deadline_s=launched.DEADLINE_S)
        self.assertEqual(len(metrics(self.output)), 4)


if __name__ == "__main__":
    unittest.main()
