#!/usr/bin/env python3
"""Checks that all C++ and CUDA sources are formatted as .clang-format says.

    scripts/check_format.py [--write]

Needs clang-format 16, because other versions format some code differently. Prints the files that are not formatted; with --write, formats
them. Exit code 1 if a file was not formatted, 77 if there is no clang-format 16.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = "16"


def formatter() -> str:
    for name in (f"clang-format-{VERSION}", "clang-format"):
        program = shutil.which(name)
        if program and re.search(rf"version {VERSION}\.", subprocess.run([program, "--version"], capture_output=True, text=True).stdout):
            return program
    print(f"check_format.py: there is no clang-format {VERSION}; on Debian 12: apt-get install clang-format-{VERSION}", file=sys.stderr)
    sys.exit(77)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    program = formatter()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    sources = [name for name in listed if re.search(r"\.(cc|h|cpp|cu|cuh)$", name) and "corpus" not in name]
    checked = subprocess.run([program, "--dry-run", "--ferror-limit=1", *sources], cwd=ROOT, capture_output=True, text=True)
    wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: (?:warning|error): code should be clang-formatted", checked.stderr, re.MULTILINE)))
    for name in wrong:
        print(f"{name}: not formatted; run scripts/check_format.py --write")
    if checked.returncode:
        print(checked.stderr, file=sys.stderr)
    if options.write and wrong:
        subprocess.run([program, "-i", *wrong], cwd=ROOT, check=True)
    return 1 if wrong or checked.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
