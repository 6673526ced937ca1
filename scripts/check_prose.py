#!/usr/bin/env python3
"""Finds words that this project does not use, in comments, documents, messages and names of tests: CONTRIBUTING.md, "Rules".

    scripts/check_prose.py [FOLDER]

Prints FILE:LINE: and the replacement, for each such word, and for each header whose comment begins with "What", "Of", "How" or "Whether" instead
of saying what the type is or does. Exit code 1 if there is a finding.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

# Words and their replacements. The words are searched for in comments and string literals of
# sources, in names of tests, and in documents outside of code.
WORDS = {
    r"told": "reported, or what the sender does",
    r"nobody": "no thread, no process, no caller",
    r"anew": "again",
    r"beside": "next to",
    r"the most": "the maximum, the largest number of",
    r"as far as": "if, where",
    r"lies": "is stored, is",
    r"how manieth": "the index of",
}
WORD = re.compile(r"\b(?:" + "|".join(WORDS) + r")\b", re.IGNORECASE)
OPENING = re.compile(r"// (What|Of|How|Whether)\b")
CODE_IN_TEXT = re.compile(r"`[^`]*`|\]\([^)]*\)")
SOURCE = {".cc", ".h", ".cu", ".cuh"}
NAME_OF_TEST = re.compile(r"\bTEST(?:_F|_P)?\(\w+, *(\w+)|\bdef (test_\w+)")


def files_of(root: Path) -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    return [root / name for name in listed if "corpus" not in name and Path(name).suffix in SOURCE | {".md", ".py"}]


def texts_of(path: Path):
    """Yields lines of prose: (line number, text)."""
    in_fence = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if path.suffix == ".md":
            in_fence = in_fence != line.lstrip().startswith("```")
            if not in_fence and not line.startswith("    "):
                yield number, CODE_IN_TEXT.sub("", line)
            continue
        test = NAME_OF_TEST.search(line)
        if test:
            yield number, re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", test[1] or test[2])
        if path.suffix == ".py":
            continue
        comment = re.search(r"//.*", line)
        strings = " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', line[:comment.start()] if comment else line))
        yield number, CODE_IN_TEXT.sub("", f"{strings} {comment[0] if comment else ''}")


def findings_of(path: Path):
    for number, text in texts_of(path):
        for found in WORD.finditer(text):
            word = found[0].lower()
            yield number, f"'{found[0]}': write {WORDS[word]}"
    if path.suffix in (".h", ".cuh"):
        lines = path.read_text().splitlines()
        opening = OPENING.match(lines[1]) if len(lines) > 1 else None
        if opening:
            yield 2, f"begins with '{opening[1]}': begin with what it is or does"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    found = False
    for path in files_of(options.folder):
        for number, what in findings_of(path):
            found = True
            print(f"{path.relative_to(options.folder)}:{number}: {what}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
