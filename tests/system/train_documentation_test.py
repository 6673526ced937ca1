#!/usr/bin/env python3
"""docs/train.md lists exactly the options of train --help, with the same arguments and defaults."""

import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class DocumentationTest(unittest.TestCase):
    def test_options_are_those_of_help(self):
        program = Path(os.environ["RP_PROGRAMS"]) / "train"
        text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
        page = (ROOT / "docs" / "train.md").read_text()
        in_help = dict(re.findall(r"^ +(?:-\w, )?--([\w-]+)(?: ([^\s]+))?", text, re.MULTILINE))
        in_page = {name: argument.replace("\\|", "|") for name, argument in re.findall(r"^\| (?:`-\w`, )?`--([\w-]+)(?: ([^`]+))?`", page, re.MULTILINE)}
        self.assertGreater(len(in_help), 15)
        self.assertEqual(in_page, in_help)

    def test_defaults_are_those_of_help(self):
        program = Path(os.environ["RP_PROGRAMS"]) / "train"
        text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
        page = (ROOT / "docs" / "train.md").read_text()
        in_help = {name: default for name, body in re.findall(r"--([\w-]+)(.*?)(?=\n +(?:-\w, )?--|\n\n)", text, re.DOTALL)
                   for default in re.findall(r"\(default:\s+([^)]+)\)", body)}
        self.assertGreater(len(in_help), 4)
        for name, default in in_help.items():
            row = re.search(rf"^\| `--{name}[ `].*?\| ([^|]*) \|", page.replace("\\|", "/"), re.MULTILINE)
            self.assertEqual(row.group(1), default, name)


if __name__ == "__main__":
    unittest.main()
