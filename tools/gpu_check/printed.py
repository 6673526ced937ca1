"""Converts the output of programs to outcomes: of GoogleTest programs, and of measuring programs,
which print one JSON object per line."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from bench import Result
from checks import NotRun, Outcome


def num_passed(result: Result) -> int:
    """Returns how many tests of a GoogleTest program passed; 0 if any was skipped, as without a GPU."""
    passed, skipped = (re.search(rf"\[  {what} *\] (\d+) test", result.out) for what in ("PASSED", "SKIPPED"))
    return int(passed.group(1)) if passed and not skipped else 0


def trouble_of(result: Result) -> str:
    """Returns which tests of a GoogleTest program failed, or why they were skipped; otherwise the
    end of the output."""
    failed = list(dict.fromkeys(re.findall(r"^\[  FAILED  \] ([A-Za-z_][\w/.]+)", result.out, re.MULTILINE)))
    if failed:
        return f"{', '.join(failed[:5])}{' ...' if len(failed) > 5 else ''} failed"
    skipped = re.search(r"^(?:child: )?(no CUDA device: .*)$", result.err + result.out, re.MULTILINE)
    return skipped.group(1) if skipped else result.said


def outcome_of_tests(result: Result) -> Outcome:
    """Returns the outcome of a GoogleTest program. All of its tests must pass."""
    if result.code is None:
        raise NotRun(f"the tests did not end within {result.seconds:.0f} s")
    passed = num_passed(result)
    is_met = result.code == 0 and passed > 0
    return Outcome(f"{passed} passed, exit code {result.code}", is_met, "" if is_met else trouble_of(result))


@dataclass(frozen=True)
class Printed:
    """The output of a measuring program, one JSON object per line, by its keys: the value of one
    key, or a tuple of several values."""

    lines: dict[object, dict]
    trouble: str  # why a line is missing
    has_failed: bool

    def outcome(self, name: object, text: Callable[[dict], str], is_met: Callable[[dict], bool] = lambda line: True) -> Outcome:
        """Returns the outcome of one line, if it was printed. Lines before a failure count."""
        line = self.lines.get(name)
        if not line:
            return Outcome(why=self.trouble, has_failed=self.has_failed)
        try:
            return Outcome(text(line), is_met(line))
        except (KeyError, TypeError, ValueError) as error:  # no figure, or not a number; the other lines count
            return Outcome(why=f"{type(error).__name__}: {error} in {line}", has_failed=True)


def printed(result: Result, *keys: str) -> Printed:
    """Parses the output. Ignores lines without one of the keys, which belong to other checks."""
    lines = {}
    for line in map(json.loads, re.findall(r"^\{.*\}$", result.out, re.MULTILINE)):
        if all(key in line for key in keys):
            lines[line[keys[0]] if len(keys) == 1 else tuple(line[key] for key in keys)] = line
    if result.code is None:
        return Printed(lines, f"the program did not end within {result.seconds:.0f} s", False)
    if result.code == 69:
        return Printed(lines, result.said, False)
    return Printed(lines, f"exit code {result.code}: {result.said}" if result.code else "no line of it", True)
