"""Declares the lines that must be shown on a GPU, each together with the function that finds its figure."""

from collections.abc import Callable
from dataclasses import dataclass

A_FIGURE = "a figure"  # the bar of a figure that only has to be known


@dataclass(frozen=True)
class Line:
    what: str
    bar: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of one line. A line without a figure was not run, or failed."""

    figure: str = ""
    is_met: bool = True
    why: str = ""  # why it was not run, or an explanation of a figure that misses its bar
    has_failed: bool = False


class NotRun(Exception):
    """Something that a check needs does not exist. The message names it."""


@dataclass(frozen=True)
class Check:
    part: str
    lines: tuple[Line, ...]
    function: Callable[..., list[Outcome]]


CHECKS: list[Check] = []


def check(part: str, *lines: tuple[str, str]):
    """Declares that a function of a Bench returns the outcomes of these lines (what, bar), in their order."""

    def declare(function):
        CHECKS.append(Check(part, tuple(Line(*line) for line in lines), function))
        return function

    return declare

