#!/usr/bin/env python3
"""Fails if a test that a page names as the proof of a feature did not run and pass.

    scripts/check_features.py docs/features.md build/test-results/*.xml
    scripts/check_features.py --names docs/features.md tests.json

The page: tables with the columns "feature", anything, "proof". A proof is a list of CTest names in backticks, or "open" and
why. A GoogleTest name with parameters (Threads/Protocol.Adds/0) is named without them (Protocol.Adds) and stands for all of
them. The XML files are what `ctest --output-junit` writes. With --names, it only checks that there are such tests, before they run;
tests.json is what `ctest --show-only=json-v1` prints. Exit code 1 if a feature is not proven, 64 if a file is unusable.
"""

import json
import re
import sys
import xml.etree.ElementTree
from dataclasses import dataclass
from pathlib import Path


class Unusable(Exception):
    pass


@dataclass
class Feature:
    line: int
    name: str
    tests: list[str]
    is_open: bool


def read_features(page: Path) -> list[Feature]:
    features, in_table = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("|"):
            in_table = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not in_table:
            if (cells[0], cells[-1]) != ("feature", "proof"):
                raise Unusable(f"line {number}: a table must begin with the columns feature, ..., proof")
            in_table = True
        elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            is_open = re.match(r"open\b", cells[-1]) is not None
            features.append(Feature(number, cells[0], [] if is_open else re.findall(r"`([^`]+)`", cells[-1]), is_open))
    if not features:
        raise Unusable("has no features")
    return features


def names_of(test: str) -> set[str]:
    """Returns the name of a test with and without its parameters."""
    return {test, re.sub(r"^(?:[^/.]+/)?([^/]+)/.*$", r"\1", test, flags=re.DOTALL)}


def read_results(files: list[Path]) -> dict[str, list[bool]]:
    """Returns for each test, by its name with and without parameters, whether it passed, in each
    file that lists it."""
    results: dict[str, list[bool]] = {}
    for file in files:
        for case in xml.etree.ElementTree.parse(file).getroot().iter("testcase"):
            for key in names_of(case.get("name", "")):
                results.setdefault(key, []).append(case.get("status") == "run")
    return results


def problems(features: list[Feature], results: dict[str, list[bool]]):
    for feature in features:
        if not feature.is_open and not feature.tests:
            yield feature, "names no test and is not open"
        for test in feature.tests:
            if test not in results:
                yield feature, f"{test} did not run: there is no such test"
            elif not all(results[test]):
                yield feature, f"{test} did not run or did not pass"


def check_names(page: Path, listed: Path) -> int:
    """Prints the tests that the page names and that are not listed. Returns the exit code."""
    tests = {name for test in json.loads(listed.read_text())["tests"] for name in names_of(test["name"])}
    missing = [(feature, test) for feature in read_features(page) for test in feature.tests if test not in tests]
    for feature, test in missing:
        print(f"{page}:{feature.line}: {feature.name}: there is no test {test}")
    return 1 if missing else 0


def main(words: list[str]) -> int:
    if words[:1] == ["--names"] and len(words) == 3:
        try:
            return check_names(Path(words[1]), Path(words[2]))
        except (OSError, ValueError, KeyError, Unusable) as error:
            print(f"check_features.py: {words[1]} and {words[2]}: {error}", file=sys.stderr)
            return 64
    if len(words) < 2:
        print("check_features.py: give the page and the files of ctest --output-junit", file=sys.stderr)
        return 2
    page, files = Path(words[0]), [Path(word) for word in words[1:]]
    try:
        features, results = read_features(page), read_results(files)
    except (OSError, UnicodeDecodeError, Unusable, xml.etree.ElementTree.ParseError) as error:
        print(f"check_features.py: {page} and results: {error}", file=sys.stderr)
        return 64
    found = list(problems(features, results))
    for feature, problem in found:
        print(f"{page}:{feature.line}: {feature.name}: {problem}")
    failed = {feature.line for feature, _ in found}
    proven = [feature for feature in features if not feature.is_open and feature.line not in failed]
    tests = {test for feature in proven for test in feature.tests}
    open_ones = "open:" if any(feature.is_open for feature in features) else "none is open"
    print(f"{page}: {len(proven)} of {len(features)} features are proven, by {len(tests)} tests; {open_ones}")
    for feature in features:
        if feature.is_open:
            print(f"  {feature.name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
