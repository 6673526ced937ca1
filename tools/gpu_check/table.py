"""Rows of docs/gpu-status.md: what must be shown on a GPU, the figure, and whether it meets its bar."""

import re
from dataclasses import astuple, dataclass

COLUMNS = ("what", "figure", "bar", "result", "driver", "card", "date")
HEADER = "| " + " | ".join(COLUMNS) + " |"
RULE = "|" + "---|" * len(COLUMNS)
RESULT = re.compile(r"met|missed(: .+)?|failed: .+|not run: .+")


class BadRow(Exception):
    """A row violates the rules of the page."""


@dataclass(frozen=True)
class Row:
    what: str
    figure: str
    bar: str
    result: str
    driver: str
    card: str
    date: str

    def __post_init__(self):
        if not self.what:
            raise BadRow("a row does not say what it is about")
        if not RESULT.fullmatch(self.result):
            raise BadRow(f"{self.what}: the result is {self.result!r}; it must be met, missed, failed: why or not run: why")
        if self.result.startswith(("met", "missed")):
            for name in ("figure", "driver", "card", "date"):
                if not getattr(self, name):
                    raise BadRow(f"{self.what}: {self.result} without a {name}")

    @property
    def was_run(self) -> bool:
        return not self.result.startswith("not run")

    def line(self) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "/").split()) for cell in astuple(self)) + " |"


def parse_line(line: str) -> Row | None:
    """Parses a row of a table. Returns None for the table's head and rule, and for other text."""
    if not line.startswith("|") or line in (HEADER, RULE):
        return None
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if line.strip().endswith("||"):
        cells.append("")
    if len(cells) != len(COLUMNS):
        raise BadRow(f"{len(cells)} cells instead of {len(COLUMNS)}: {line}")
    return Row(*cells)


def read_rows(text: str) -> list[Row]:
    return [row for row in map(parse_line, text.splitlines()) if row is not None]


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """Merges rows. A new row replaces the old row of the same subject, but a row that was not run
    does not replace one that was."""
    rows = {row.what: row for row in old}
    for row in new:
        if row.was_run or row.what not in rows or not rows[row.what].was_run:
            rows[row.what] = row
    return list(rows.values())
