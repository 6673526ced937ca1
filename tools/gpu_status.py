#!/usr/bin/env python3
"""Merges rows of scripts/gpu-check.sh into docs/gpu-status.md.

    tools/gpu_status.py [--page docs/gpu-status.md] [FILE ...]

A row replaces the earlier row of the same subject, but a row that was not run does not replace one that was. Lines that have no row
yet are listed as not run. Exit code 64 for an invalid row: met without a figure, or an unknown subject.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "gpu_check"))

from all_checks import load_all  # noqa: E402
from parts import PARTS  # noqa: E402
from table import HEADER, RULE, BadRow, Row, merged, read_rows  # noqa: E402

HEAD = """# What was shown on a GPU
This page lists every line that needs a GPU, with its figure, and the driver, the card and the day of the measurement.
The rows come from `scripts/gpu-check.sh` ([gpu-check.md](gpu-check.md)) and are merged by `tools/gpu_status.py`. *Not
run* means that the figure is not known.
"""


def declared_rows() -> dict[str, list[Row]]:
    """Returns a row for every line, by part, marked as not run."""
    rows: dict[str, list[Row]] = {part: [] for part in PARTS}
    for each in load_all():
        rows[each.part] += [Row(line.what, "", line.bar, "not run: needs a GPU", "", "", "") for line in each.lines]
    return rows


def page_text(rows: list[Row]) -> str:
    """Returns the text of the page. Throws BadRow for a row whose line is not declared."""
    declared = declared_rows()
    known = {row.what: row for part in declared.values() for row in part}
    for row in rows:
        if row.what not in known:
            raise BadRow(f"no check has a line '{row.what}'")
    newest = {row.what: row for row in merged(list(known.values()), rows)}
    text = HEAD
    for part, its in declared.items():
        text += f"\n## {part}\n{HEADER}\n{RULE}\n" + "".join(newest[row.what].line() + "\n" for row in its)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "gpu-status.md")
    parser.add_argument("rows", type=Path, nargs="*", metavar="FILE")
    arguments = parser.parse_args()
    try:
        known = {row.what for part in declared_rows().values() for row in part}
        # Rows of the page whose check no longer exists are dropped; a new row must name an existing
        # line.
        rows = [row for row in read_rows(arguments.page.read_text(encoding="utf-8")) if row.what in known] if arguments.page.exists() else []
        for file in arguments.rows:
            rows = merged(rows, read_rows(file.read_text(encoding="utf-8")))
        arguments.page.write_text(page_text(rows), encoding="utf-8")
    except (BadRow, OSError) as error:
        print(f"gpu_status.py: {error}", file=sys.stderr)
        return 64
    return 0


if __name__ == "__main__":
    sys.exit(main())
