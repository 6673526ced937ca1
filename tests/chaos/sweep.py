#!/usr/bin/env python3
"""Lets every system call of a run fail in every possible way, one per run, and reports the outcomes.
docs/design/chaos.md.

  RP_PROGRAMS=build/release/bin RP_TINY_MODEL=build/release/tests/system/tiny tests/chaos/sweep.py train --jobs 2

Exit code 0 if every run ended as required. Every other run is printed with the command line that repeats it."""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import random
import re
import shlex
import sys
import tempfile
import threading
import time
from pathlib import Path

from disturbed_run import FAULTS, WRITES, Call, Fault, Outcome, faults_of, run
from scenarios import SCENARIOS, Scenario, empty

LIBRARY = Path(os.environ.get("RP_FAILING_CALLS", Path(os.environ["RP_PROGRAMS"]).parent / "tests" / "libfailing_calls.so"))
# Codes with which a run may end because the machine lacks something: docs/exit-codes.md. 1, an
# exception in user code, is not allowed.
CODES = {69: "resource", 74: "output", 125: "launcher", 126: "cannot execute"}
# Calls that a signal may interrupt, so they must be repeated. The others never fail with EINTR.
INTERRUPTED = (*WRITES, "fsync", "fdatasync", "fallocate", "ftruncate", "open", "dup")
MAX_LINES = 8  # of a message, with the lines below it


@dataclasses.dataclass
class Verdict:
    fault: Fault
    code: int | None
    failed: Call | None  # None: the run did not reach this call
    complaints: list[str]
    message: str

    def kind(self) -> str:
        if self.complaints:
            return "wrong"
        return "same bits" if self.code == 0 else f"code {self.code}"


def messages_of(err: str) -> list[str]:
    """Returns the lines that state why the run failed. The lines below such a line belong to it, for example the
    launcher's report of a worker that has printed the reason itself. Losses, and an stdout that became unwritable
    while the run continued, are reported in lines of their own, which are not included."""
    others = ("; the run goes on, and metrics.jsonl", "train: the run ends after step ")
    lines = [line for line in err.splitlines() if re.match(r"\S+: (?!note|warning)", line) and not any(each in line for each in others)]
    is_report = len(lines) == 2 and lines[1].startswith("rp-launch: worker") and "the message above says what is wrong" in err
    return lines[:1] if is_report else lines


def complaints_of(fault: Fault, outcome: Outcome) -> list[str]:
    """Returns the problems of a run that did not succeed."""
    if outcome.code is None:
        return ["did not end"]
    # A file that cannot be read may end the run with code 64, unless the error is not the file's
    # fault.
    reads = fault.call == "open" and fault.fault not in ("EMFILE", "EINTR")
    found = [] if outcome.code in CODES or (reads and outcome.code == 64) else [f"code {outcome.code}"]
    if fault.call in INTERRUPTED and fault.fault in ("EINTR", "short"):
        found.append("must be survived")
    messages = messages_of(outcome.err)
    if len(messages) != 1 or outcome.err.count("\n") > MAX_LINES:
        found.append(f"{len(messages)} messages in {outcome.err.count(chr(10))} lines")
    return found


class Sweep:
    def __init__(self, scenario: Scenario, work: Path):
        self.scenario, self.work = scenario, work
        scenario.prepare(work)
        directory = work / "undisturbed"
        empty(directory)
        scenario.set_up(directory)
        outcome = self.run(scenario.command(directory), directory, None)
        if outcome.code != 0 or outcome.left:
            raise SystemExit(f"the undisturbed run failed: code {outcome.code}, left {outcome.left}\n{outcome.out}{outcome.err}")
        self.calls, self.bits, self.seconds = outcome.calls, scenario.bits(directory), outcome.seconds

    def run(self, command: list[str], directory: Path, fault: Fault | None) -> Outcome:
        return run(command, directory, LIBRARY, fault, self.scenario.deadline_s)

    def judge(self, fault: Fault) -> Verdict:
        directory = self.work / f"run-{threading.get_ident()}"
        empty(directory)
        self.scenario.set_up(directory)
        outcome = self.run(self.scenario.command(directory), directory, fault)
        failed = outcome.failed_call()
        complaints = [f"left: {each}" for each in outcome.left] + self.scenario.complaints(outcome, directory)
        if not outcome.failed_in_removal():
            complaints += [f"left: {each}" for each in self.scenario.half_written(directory)]
        if outcome.code == 0:
            complaints += self.bits_of(directory)
        else:
            # The calls of several threads have no fixed order, so the call with this index may
            # differ from that in the undisturbed run.
            is_ours = failed is None or not failed.is_of_torch_kernel()
            complaints += (complaints_of(fault, outcome) if is_ours else []) + self.complaints_of_again(outcome, directory)
        return Verdict(fault, outcome.code, failed, complaints, outcome.err)

    def bits_of(self, directory: Path) -> list[str]:
        try:
            return [] if self.scenario.bits(directory) == self.bits else ["other bits"]
        except OSError as error:
            return [f"no results: {error}"]

    def complaints_of_again(self, first: Outcome, directory: Path) -> list[str]:
        second = self.run(self.scenario.again(directory), directory, None)
        if second.code != 0:
            return [f"run again: code {second.code}: {second.err.strip()}"]
        found = self.bits_of(directory) + [f"left: {each}" for each in second.left]
        return [f"run again: {each}" for each in found + self.scenario.complaints_of_again(first, second, directory)]


def selection(faults: list[Fault], seed: int, number: int) -> list[Fault]:
    """Returns `number` of the faults, which cover as many processes and calls as possible."""
    chance = random.Random(seed)
    groups = collections.defaultdict(list)
    for fault in faults:
        groups[fault.process, fault.call].append(fault)
    names = sorted(groups)
    chance.shuffle(names)
    chosen = [chance.choice(groups[name]) for name in names]
    rest = [fault for fault in faults if fault not in chosen]
    chance.shuffle(rest)
    return (chosen + rest)[:number]


def table(verdicts: list[Verdict]) -> str:
    """Returns a table with the number of runs by outcome, for each call and fault."""
    rows = collections.defaultdict(collections.Counter)
    for verdict in verdicts:
        rows[verdict.fault.call, verdict.fault.fault][verdict.kind() if verdict.failed else "not reached"] += 1
    lines = [f"{call:15} {fault:7} {sum(count.values()):5}  " + ", ".join(f"{number} {kind}" for kind, number in sorted(count.items()))
             for (call, fault), count in sorted(rows.items())]
    return "\n".join(lines)


def line_that_repeats(scenario: Scenario, fault: Fault) -> str:
    return shlex.join(["tests/chaos/sweep.py", scenario.name, "--only", str(fault)])


def reported(report: Path | None) -> set[Fault]:
    if report is None or not report.exists():
        return set()
    return {Fault(**json.loads(line)["fault"]) for line in report.read_text().splitlines()}


def sweep(runner: Sweep, faults: list[Fault], jobs: int, report: Path | None) -> list[Verdict]:
    verdicts = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(runner.judge, faults):
            verdicts.append(verdict)
            if report:
                with report.open("a") as file:
                    file.write(json.dumps(dataclasses.asdict(verdict)) + "\n")
            if verdict.complaints:
                print(f"{verdict.fault}: {'; '.join(verdict.complaints)}\n    {verdict.failed}\n    " + verdict.message.strip().replace("\n", "\n    ") +
                      f"\n  again: {line_that_repeats(runner.scenario, verdict.fault)}", flush=True)
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--process", help="only calls of this process")
    parser.add_argument("--call", help="only this call")
    parser.add_argument("--fault", choices=FAULTS, help="only this fault")
    parser.add_argument("--only", help='one run: "PROCESS CALL INDEX FAULT"')
    parser.add_argument("--cases", type=int, help="that many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", type=Path, help="a file for one JSON object a run; runs that it has already are not made again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rp-chaos-") as work:
        runner = Sweep(SCENARIOS[options.scenario], Path(work))
        faults = [fault for fault in faults_of(runner.calls)
                  if options.process in (None, fault.process) and options.call in (None, fault.call) and options.fault in (None, fault.fault)]
        if options.only:
            process, call, index, kind = options.only.split()
            faults = [Fault(process, call, int(index), kind)]
        if options.cases:
            faults = selection(faults, options.seed, options.cases)
        done = reported(options.report)
        faults = [fault for fault in faults if fault not in done]
        print(f"{len(runner.calls)} calls, {len(faults)} runs, the undisturbed one took {runner.seconds:.1f} s", flush=True)
        start = time.monotonic()
        verdicts = sweep(runner, faults, options.jobs, options.report)
    wrong = sum(bool(verdict.complaints) for verdict in verdicts)
    print(table(verdicts))
    print(f"{len(verdicts)} runs in {time.monotonic() - start:.0f} s, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
