#!/usr/bin/env python3
"""Looks for false alarms of the hang watch: trains beside processes that keep all cores busy, with workers that get no processor
for longer than a task may take, or with a debugger that holds a worker. No process may be reported as hanging or be replaced, and
each run must have the bits of a run that was left alone.

    benchmarks/false_alarms.py --minutes 60 --spinners 6
    benchmarks/false_alarms.py --minutes 5 --starve
    benchmarks/false_alarms.py --minutes 10 --debugger

Needs the release build, the small model of its tests, root for --starve, and gdb for --debugger."""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kill_workers import command, num_steps  # sets the paths for launched
from launched import bits, serving_workers

ALARM = re.compile(r"rp-launch: .*(?:hang|stopped|killed|takes its place|goes on)")
SPIN = "while True: pass"
STARVED_S = 25  # more than the least time after which a task hangs (HangWatch::kMinNs)


class TrainingRun:
    """A run of train, repeated with the same bits."""

    def __init__(self, directory: Path, workers: int, steps: int):
        self.directory, self.workers = directory, workers
        self.changes = {"max_steps": steps, "save_every": "never", "async": True}
        self.number = 0
        subprocess.run(command(directory / "alone", 2, self.changes, []), check=True, capture_output=True)
        self.expected = bits(directory / "alone")

    def start(self) -> subprocess.Popen:
        self.number += 1
        self.output = self.directory / f"run-{self.number}"
        self.log = self.directory / f"log-{self.number}"
        with self.log.open("w") as log:
            return subprocess.Popen(command(self.output, self.workers, self.changes, []), stdout=subprocess.DEVNULL, stderr=log)

    def problems(self, process: subprocess.Popen) -> list[str]:
        """Waits for the end of the run. Returns what is wrong with it."""
        process.wait()
        errors = self.log.read_text()
        found = [line for line in errors.splitlines() if ALARM.search(line)]
        if process.returncode != 0:
            return [*found, f"exit code {process.returncode}", errors[-2000:]]
        return found if bits(self.output) == self.expected else [*found, "not the same bits"]


def beside_spinners(run: TrainingRun, seconds: float) -> tuple[int, list[str]]:
    """Trains until the time is over. Returns the number of runs, and what was wrong."""
    end, count, wrong = time.monotonic() + seconds, 0, []
    while time.monotonic() < end:
        wrong += run.problems(run.start())
        count += 1
        print(f"run {count}: {len(wrong)} problems so far, {max(0, end - time.monotonic()):.0f} s left", flush=True)
    return count, wrong


def set_policy(pid: int, policy: int, cores: set[int]) -> None:
    """Sets the scheduling policy and the cores of all threads of a process, if it has not ended."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(task.name), policy, os.sched_param(0))
            os.sched_setaffinity(int(task.name), cores)
    except (FileNotFoundError, ProcessLookupError):
        pass


def starve(run: TrainingRun, process: subprocess.Popen, rng: random.Random) -> bool:
    """Takes the processor away from one worker for STARVED_S. Returns whether the run stood still meanwhile."""
    pid = rng.choice(list(serving_workers(process).values()))
    cores = os.sched_getaffinity(pid)
    core = rng.choice(sorted(cores))
    spinner = subprocess.Popen([sys.executable, "-c", SPIN], preexec_fn=lambda: (os.sched_setaffinity(0, {core}), os.nice(-20)))
    try:
        set_policy(pid, os.SCHED_IDLE, {core})
        time.sleep(1)
        before = num_steps(run.output)
        time.sleep(STARVED_S)
        return num_steps(run.output) == before
    finally:
        spinner.kill()
        spinner.wait()
        set_policy(pid, os.SCHED_OTHER, cores)


def starved(run: TrainingRun, seconds: float, rng: random.Random) -> tuple[int, list[str]]:
    """Takes the processor away from one worker in each run, until the time is over; only once, because after a slow task more
    patience is right. Returns the number of runs, and what was wrong."""
    end, count, stood_still, wrong = time.monotonic() + seconds, 0, 0, []
    while time.monotonic() < end:
        process = run.start()
        count += 1
        try:
            first = rng.randrange(5, 50)
            while process.poll() is None and (num_steps(run.output) < first or len(serving_workers(process)) < run.workers):
                time.sleep(0.02)
            stood_still += starve(run, process, rng)
            wrong += run.problems(process)
        except BaseException:
            process.kill()
            raise
        print(f"run {count}: {stood_still} times a step took over {STARVED_S} s, {len(wrong)} problems so far", flush=True)
    return count, wrong if stood_still > 0 else [*wrong, "no step was slow"]


def under_debugger(run: TrainingRun, seconds: float, rng: random.Random) -> tuple[int, list[str]]:
    """Has gdb hold one worker for the time."""
    process = run.start()
    try:
        while num_steps(run.output) < 5 or not serving_workers(process):
            if process.poll() is not None:
                raise RuntimeError(f"the run has ended:\n{run.log.read_text()}")
            time.sleep(0.1)
        worker, pid = rng.choice(sorted(serving_workers(process).items()))
        print(f"gdb holds worker {worker} (pid {pid})", flush=True)
        begin = num_steps(run.output)
        subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", f"shell sleep {seconds:.0f}", "-ex", "detach"], check=True, capture_output=True)
        print(f"{num_steps(run.output) - begin} steps were done meanwhile", flush=True)
    except BaseException:
        process.kill()
        raise
    return 1, run.problems(process)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--spinners", type=int, default=6)
    parser.add_argument("--starve", action="store_true")
    parser.add_argument("--debugger", action="store_true")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no spinner is left
    with tempfile.TemporaryDirectory() as directory:
        run = TrainingRun(Path(directory), arguments.workers, arguments.steps)
        is_alone = arguments.debugger or arguments.starve
        spinners = [] if is_alone else [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(arguments.spinners)]
        try:
            if arguments.starve:
                count, wrong = starved(run, 60 * arguments.minutes, random.Random(arguments.seed))
            elif arguments.debugger:
                count, wrong = under_debugger(run, 60 * arguments.minutes, random.Random(arguments.seed))
            else:
                count, wrong = beside_spinners(run, 60 * arguments.minutes)
        finally:
            for spinner in spinners:
                os.kill(spinner.pid, signal.SIGKILL)
    print(*wrong, f"{count} runs, {len(wrong)} problems", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
