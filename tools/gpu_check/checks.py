"""The lines that a GPU must show, each declared beside the function that finds its figure."""

from collections.abc import Callable
from dataclasses import dataclass

A_FIGURE = "a figure"  # the bar of what only has to be known


@dataclass(frozen=True)
class Line:
    what: str
    bar: str


@dataclass(frozen=True)
class Outcome:
    """Of one line. Without a figure it was not run, or failed."""

    figure: str = ""
    is_met: bool = True
    why: str = ""  # it was not run, or what is to be known of a figure that misses its bar
    has_failed: bool = False


class NotRun(Exception):
    """What a check needs is not there; says what."""


@dataclass(frozen=True)
class Check:
    part: str
    lines: tuple[Line, ...]
    function: Callable[..., list[Outcome]]


CHECKS: list[Check] = []


def check(part: str, *lines: tuple[str, str]):
    """Declares that a function of a Bench gives the outcomes of these lines (what, bar), in their order."""

    def declare(function):
        CHECKS.append(Check(part, tuple(Line(*line) for line in lines), function))
        return function

    return declare

