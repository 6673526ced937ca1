#!/usr/bin/env python3
"""Code that the tools share: a directory with SHA256SUMS is compared with that file."""

import hashlib
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from tool import BAD_INPUT, ToolError, verify_checksums  # noqa: E402


class VerifyChecksumsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-tool-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        lines = []
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (self.directory / name).write_text(name)
            lines.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n")
        self.list = self.directory / "SHA256SUMS"
        self.list.write_text("".join(lines))

    def refused(self, *parts: str):
        with self.assertRaises(ToolError) as raised:
            verify_checksums(self.directory)
        self.assertEqual(raised.exception.code, BAD_INPUT)
        for part in parts:
            self.assertIn(part, str(raised.exception))

    def test_what_is_listed_is_compared(self):
        verify_checksums(self.directory)
        (self.directory / "notes.txt").write_text("mine")
        verify_checksums(self.directory)
        (self.directory / "tokenizer.json").write_text("other")
        self.refused("tokenizer.json: does not have its checksum", "remove SHA256SUMS")
        (self.directory / "tokenizer.json").unlink()
        self.refused("tokenizer.json: is listed in SHA256SUMS next to it, and cannot be read")

    def test_weights_and_configuration_must_be_listed(self):
        lines = self.list.read_text().splitlines(keepends=True)
        self.list.write_text(lines[0] + lines[2])
        self.refused("model.safetensors: is not listed")
        self.list.write_text("")
        self.refused("config.json: is not listed")

    def test_a_directory_without_a_list_is_left_alone(self):
        self.list.unlink()
        (self.directory / "model.safetensors").write_text("other")
        verify_checksums(self.directory)


class MessagesTest(unittest.TestCase):
    def test_nothing_in_a_message_steers_the_terminal(self):
        tools = Path(__file__).resolve().parents[2] / "tools"
        result = subprocess.run([sys.executable, tools / "ask.py", "--model", "a\nb\x1b[2J\u202e", "--question", "?"], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr), (BAD_INPUT, "ask.py: a\\nb\\x1b[2J\\u202e: there is no such directory\n"))


if __name__ == "__main__":
    unittest.main()
