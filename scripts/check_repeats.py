#!/usr/bin/env python3
"""Finds code of the product that stands more than once: equal sequences of at least six lines, without comments, blank lines,
includes and lines that consist of braces only.

    scripts/check_repeats.py

Prints the places of each repeat; exit code 1 if there is one. Tests and benchmarks are not compared.
"""
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST_LINES = 6
LEFT_OUT = ("tests/", "benchmarks/", "examples/")


def significant_lines(text: str) -> list[tuple[int, str]]:
    """Returns the lines that are compared, with their numbers and without spaces."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        code = re.sub(r"\s+", "", re.sub(r"//.*", "", line))
        if re.search(r"\w", code) and not code.startswith(("#include", "namespace", "using")):
            lines.append((number, code))
    return lines


def repeats(files: dict[str, list[tuple[int, str]]]) -> list[list[tuple[str, int, int]]]:
    """Returns lists of equal places (file, first line, last line), each as long as possible."""
    windows = defaultdict(list)
    for name, lines in files.items():
        for i in range(len(lines) - LEAST_LINES + 1):
            windows[tuple(code for _, code in lines[i : i + LEAST_LINES])].append((name, i))
    found, covered = [], set()
    for places in windows.values():
        for place in places[1:]:
            pair = (places[0], place)
            if pair in covered:
                continue
            (a, i), (b, j) = pair
            length = 0
            while i + length < len(files[a]) and j + length < len(files[b]) and files[a][i + length][1] == files[b][j + length][1]:
                covered.add(((a, i + length), (b, j + length)))
                length += 1
            if a == b and i + length > j:
                continue  # a list of equal lines overlaps with itself
            found.append([(name, files[name][at][0], files[name][at + length - 1][0]) for name, at in pair])
    return found


def main() -> int:
    names = subprocess.run(["git", "ls-files", "*.h", "*.cc", "*.cu", "*.cuh"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {}
    for name in names.stdout.split():
        if not name.startswith(LEFT_OUT):
            files[name] = significant_lines((ROOT / name).read_text())
    found = repeats(files)
    for places in found:
        print("equal lines: " + ", ".join(f"{name}:{first}-{last}" for name, first, last in places))
    print(f"check_repeats.py: {len(found)} repeats in {len(files)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
