"""Runs one part of scripts/gpu-check.sh. Call that script instead of this program.

    python3 tools/gpu_check PART --seconds N --table FILE --scratch DIR
"""

import argparse
import datetime
import os
import signal
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import host_memory  # noqa: E402
from all_checks import load_all  # noqa: E402
from bench import NO_DEVICE, Bench, NoDevice, find_card, warm_libraries  # noqa: E402
from checks import Check, NotRun, Outcome  # noqa: E402
from parts import PARTS  # noqa: E402
from table import Row  # noqa: E402


MOST_OF_A_REASON = 300  # characters


def result_of(outcome: Outcome) -> str:
    """Returns the result as one line, even if the reason has several."""
    why = " ".join(outcome.why.split())[:MOST_OF_A_REASON]
    if outcome.has_failed:
        return f"failed: {why or 'for an unknown reason'}"
    if not outcome.figure:
        return f"not run: {why or 'no figure'}"
    if outcome.is_met:
        return "met"
    return f"missed: {why}" if why else "missed"


def rows_of(each: Check, bench: Bench) -> list[Row]:
    """Runs a check. If the check itself fails, that is the result of all its lines."""
    outcomes: list[Outcome] = []
    failure = ""
    try:
        bench.seconds(1)
        outcomes = each.function(bench)
    except NotRun as reason:
        outcomes = [Outcome(why=str(reason)) for _ in each.lines]
    except Exception as error:  # a defect in one check must not lose the results of others
        if bench.log is None:
            traceback.print_exc()
        else:
            with open(bench.log, "a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
        failure = result_of(Outcome(why=f"{type(error).__name__}: {error}", has_failed=True))
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    rows = []
    for i, line in enumerate(each.lines):
        outcome = outcomes[i] if i < len(outcomes) else Outcome(why="the check gave none", has_failed=True)
        result = failure or result_of(outcome)
        rows.append(Row(line.what, outcome.figure, line.bar, result, bench.card.driver, bench.card.name, date))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        card = find_card()
    except NoDevice as reason:
        print(f"gpu-check.sh: {arguments.part}: {reason}", file=sys.stderr)
        return NO_DEVICE
    # The log is next to the table, so that it is copied along with it: from some machines only the
    # end of the output comes back.
    log = arguments.table.with_name(arguments.table.name + ".log")
    print(warm_libraries(os.environ.get("LD_LIBRARY_PATH", ""), 60), file=sys.stderr)
    if size := os.environ.get("RP_GPU_HOST_MEMORY"):
        print(host_memory.ask_for(host_memory.parse_size(size), 60), file=sys.stderr)
    bench = Bench(card, arguments.seconds, arguments.scratch, log, scale=max(1.0, arguments.seconds / PARTS[arguments.part].seconds))

    def end(*_):
        bench.kill_all()
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    is_good = True
    for each in load_all():
        if each.part != arguments.part:
            continue
        for row in rows_of(each, bench):
            print(row.line(), flush=True)
            with open(arguments.table, "a", encoding="utf-8") as table:
                table.write(row.line() + "\n")
            is_good = is_good and not row.result.startswith(("missed", "failed"))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
