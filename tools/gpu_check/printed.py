"""What programs print, as outcomes: GoogleTest's and those that measure, which print a JSON object a line."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from bench import Result
from checks import NotRun, Outcome


def num_passed(result: Result) -> int:
    """Tests of a GoogleTest program; 0 if it left one out, as it does without a GPU."""
    passed, skipped = (re.search(rf"\[  {what} *\] (\d+) test", result.out) for what in ("PASSED", "SKIPPED"))
    return int(passed.group(1)) if passed and not skipped else 0


def trouble_of(result: Result) -> str:
    """Which tests of a GoogleTest program failed, or why it left them out; else the end of what it said."""
    failed = list(dict.fromkeys(re.findall(r"^\[  FAILED  \] ([A-Za-z_][\w/.]+)", result.out, re.MULTILINE)))
    if failed:
        return f"{', '.join(failed[:5])}{' ...' if len(failed) > 5 else ''} failed"
    skipped = re.search(r"^(?:child: )?(no CUDA device: .*)$", result.err + result.out, re.MULTILINE)
    return skipped.group(1) if skipped else result.said


def outcome_of_tests(result: Result) -> Outcome:
    """Of a GoogleTest program all of whose tests must pass."""
    if result.code is None:
        raise NotRun(f"the tests did not end within {result.seconds:.0f} s")
    passed = num_passed(result)
    is_met = result.code == 0 and passed > 0
    return Outcome(f"{passed} passed, exit code {result.code}", is_met, "" if is_met else trouble_of(result))


@dataclass(frozen=True)
class Printed:
    """What a measuring program printed, a JSON object a line, by the name in each: of one key its value, of several a tuple."""

    lines: dict[object, dict]
    trouble: str  # of a line that is not there
    has_failed: bool

    def outcome(self, name: object, text: Callable[[dict], str], is_met: Callable[[dict], bool] = lambda line: True) -> Outcome:
        """Of one line, if it was printed: what came before a failure counts."""
        line = self.lines.get(name)
        if not line:
            return Outcome(why=self.trouble, has_failed=self.has_failed)
        try:
            return Outcome(text(line), is_met(line))
        except (KeyError, TypeError, ValueError) as error:  # a figure that is missing, or no number; the other lines stay
            return Outcome(why=f"{type(error).__name__}: {error} in {line}", has_failed=True)


def printed(result: Result, *keys: str) -> Printed:
    """Lines without one of the keys are others'."""
    lines = {}
    for line in map(json.loads, re.findall(r"^\{.*\}$", result.out, re.MULTILINE)):
        if all(key in line for key in keys):
            lines[line[keys[0]] if len(keys) == 1 else tuple(line[key] for key in keys)] = line
    if result.code is None:
        return Printed(lines, f"the program did not end within {result.seconds:.0f} s", False)
    if result.code == 69:
        return Printed(lines, result.said, False)
    return Printed(lines, f"exit code {result.code}: {result.said}" if result.code else "no line of it", True)
