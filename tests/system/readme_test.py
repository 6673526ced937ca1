#!/usr/bin/env python3
"""Every command and program in README.md runs as written, after the two commands at its beginning.

Usage: readme_test.py BUILD_DIR"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop(1)).resolve()
TINY_MODEL = Path(os.environ["RP_TINY_MODEL"])
TIMEOUT_S = 240
# These commands build, test and train for many minutes and are run separately (CI runs the second,
# which builds the same as the first).
LONG = {"scripts/quickstart.sh", "scripts/test.sh"}
NO_RESOURCE = 69  # exit code of commands that need a GPU, on a machine without one

CHATS = "\n".join('{"messages": [{"role": "user", "content": "What is %d?"}, {"role": "assistant", "content": "a bogon, when the machine fails %d times"}]}'
                  % (i, i * i) for i in range(40))


def blocks(text: str) -> list[tuple[str, str]]:
    """Returns the language and the contents of the fenced blocks, in order."""
    return [(language, re.sub(r"(?m)^ {3}", "", body) if indent else body)
            for indent, language, body in re.findall(r"(?ms)^( *)```(\w*)\n(.*?)^ *```$", text)]


def commands(body: str) -> list[str]:
    joined = re.sub(r" *\\\n\s*", " ", body)
    lines = [re.sub(r"\s+# .*", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line.startswith(("scripts/", "build/release/bin/", ".venv/bin/python "))]


class ReadmeTest(unittest.TestCase):
    def test_every_command_runs_as_it_is_written(self):
        text = (ROOT / "README.md").read_text()
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            (place / "tools").symlink_to(ROOT / "tools")
            (place / ".venv").symlink_to(ROOT / ".venv")
            (place / "build").mkdir()
            (place / "build" / "release").symlink_to(BUILD)
            (place / "my-model").symlink_to(TINY_MODEL / "model")
            (place / "chats.jsonl").write_text(CHATS)
            ran = []
            for language, body in blocks(text):
                if language == "python":
                    self.run_one(place, [str(ROOT / ".venv/bin/python"), "-c", body], body)
                    continue
                for command in commands(body):
                    if command in LONG:
                        continue
                    needs_gpu = "--gpus" in command or "gpu-check" in command or command.endswith("doctor")
                    # Scripts find the project by their own path.
                    self.run_one(ROOT if command.startswith("scripts/") else place, ["bash", "-c", command], command, allowed={0, NO_RESOURCE} if needs_gpu else {0})
                    ran.append(command)
            self.assertGreaterEqual(len(ran), 9, ran)
            self.assertTrue((place / "run/first/final/model.safetensors").is_file())

    def run_one(self, place: Path, words: list[str], text: str, allowed=frozenset({0})):
        with self.subTest(command=text):
            result = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=TIMEOUT_S)
            self.assertIn(result.returncode, allowed, f"{text}\n{result.stdout[-1500:]}\n{result.stderr[-1500:]}")


if __name__ == "__main__":
    unittest.main(verbosity=1)
