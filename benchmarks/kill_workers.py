#!/usr/bin/env python3
"""Kills, stops or hangs workers of training runs at random times and compares the results with runs that were left alone: how
many runs end with the same bits, how long rp-launch needs to report the harm, and how long until a replacement has a task. A
killed process lives on for some time, longer on a busy machine: the kernel takes its threads and its memory apart.

    benchmarks/kill_workers.py --runs 20 --kills 50 --seed 1
    benchmarks/kill_workers.py --runs 20 --stops 5 --hangs 5 --seed 1      # with --wait-timeout 1
    benchmarks/kill_workers.py --runs 20 --kills 50 --seed 1 --run 3       # run 3 of the first command, alone

Each run has another combination of 1 to 8 workers, synchronous or asynchronous steps, adapters or all weights, one or two
rounds a step. If there are no hangs, every fifth run is one of bits_program instead of train, which trains four models in one
session; it is repeated until all harm is done. One kill in three is followed at once by that of another worker, which may
still be starting. A run is good if it has the same losses, weights, masters and moments, and if no process was lost but those
that were harmed: a lost coordinator ends it. Needs the release build and the small model of its tests."""

import argparse
import json
import os
import random
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build/release/bin"
SAMPLE = ROOT / "build/release/tests/system/tiny"
sys.path.insert(0, str(ROOT / "tests/system"))
os.environ |= {"RP_PROGRAMS": str(PROGRAMS), "RP_TINY_MODEL": str(SAMPLE),
               "RP_SPIN_LIBRARY": str(ROOT / "build/release/tests/libspin_on_signal.so")}  # for launched
from launched import bits, children_with_role, hang, may_hang, serving_workers, settings, state_bits  # noqa: E402

REPORT = re.compile(r"rp-launch: worker \d+ \(pid (\d+)\) ")  # of a worker that was lost, whatever happened to it


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def command(output: Path, workers: int, changes: dict, launch: list[str]) -> list[str]:
    return [str(PROGRAMS / "rp-launch"), "--workers", str(workers), *launch, "train", *settings(output, **changes)]


def num_steps(output: Path) -> int:
    file = output / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def has_task(process: subprocess.Popen, worker: int, pid: int) -> bool:
    """Returns true if this process has this worker's place and a task."""
    shown = subprocess.run([str(PROGRAMS / "rp-launch"), "ps", "--json"], capture_output=True, text=True, check=True).stdout
    for run in json.loads(shown)["runs"]:
        if run["pid"] == process.pid and len(run["processes"]) > worker + 1:
            place = run["processes"][worker + 1]
            return place["pid"] == pid and place["task"] is not None
    return False


def combination(index: int, seed: int) -> dict:
    """Returns the settings of a run: each of the eight combinations occurs once in eight runs, in random order."""
    number = random.Random(f"{seed} {index // 8}").sample(range(8), 8)[index % 8]
    changes = {"async": True} if number & 1 else {}
    changes |= {"lora_rank": 4} if number & 2 else {}
    return changes | ({"rounds_per_step": 2} if number & 4 else {})


class TrainProgram:
    """A run of train."""

    def __init__(self, num_steps: int, changes: dict):
        self.changes = {"max_steps": num_steps, "save_every": num_steps} | changes
        self.name = f"train {self.changes}"

    def command(self, output: Path, workers: int, launch: list[str]) -> list[str]:
        return command(output, workers, self.changes, launch)

    def result(self, output: Path, _printed: str) -> tuple:
        return bits(output, "adapter_model.safetensors" if "lora_rank" in self.changes else "model.safetensors"), state_bits(output)


class PipelinesProgram:
    """A run of bits_program, with four pipelines. It prints everything that must be the same."""

    name = "four pipelines"

    def command(self, _output: Path, workers: int, launch: list[str]) -> list[str]:
        program = ROOT / "build/release/tests/bits_program"
        return [str(PROGRAMS / "rp-launch"), "--workers", str(workers), *launch, str(program), "stage", "automatic", str(SAMPLE / "model")]

    def result(self, _output: Path, printed: str) -> str:
        return printed


class HarmedRun:
    """One run whose workers are harmed. `harms`: functions of a worker's pid, which are removed when they are done. Times are
    in seconds of the monotonic clock."""

    def __init__(self, words: list[str], output: Path, harms: list, rng: random.Random):
        self.harmed = {}  # pid -> (name of the harm, time)
        self.ends = {}  # pid -> time at which the kernel says that the process has ended
        self.reported = {}  # pid -> time
        self.replaced = []  # (name of the harm, from the harm to the replacement's first task)
        self.ended = []  # names of the harms after which the run ended before a replacement had a task
        self.rng, self.harms = rng, harms
        printed = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(words, stdout=printed, stderr=subprocess.PIPE, text=True, env=may_hang())
        self.errors = []
        self.has_reported = threading.Condition()
        self.threads = [threading.Thread(target=self.read)]
        self.threads[0].start()
        steps = 0
        while self.process.poll() is None and harms:
            time.sleep(rng.uniform(0.02, 0.2))
            workers = serving_workers(self.process)
            # Three hangs of the same task end a run.
            if workers and (harms[-1] is not hang or num_steps(output) > steps):
                steps = num_steps(output)
                self.harm_one(*rng.choice(sorted(workers.items())))
        self.process.wait()
        self.end = time.monotonic()
        for thread in self.threads:
            thread.join()
        printed.seek(0)
        self.printed = printed.read()

    def harm(self, pid: int) -> bool:
        """Does the next harm to this process. Returns false if it has ended before."""
        harm = self.harms[-1]
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        self.threads.append(threading.Thread(target=self.wait_for_end, args=(pid, process)))
        self.threads[-1].start()
        self.harmed[pid] = (harm.__name__, time.monotonic())
        try:
            harm(pid)
        except ProcessLookupError:
            del self.harmed[pid]
            return False
        self.harms.pop()
        return True

    def wait_for_end(self, pid: int, process: int):
        select.select([process], [], [])
        self.ends[pid] = time.monotonic()
        os.close(process)

    def harm_one(self, worker: int, pid: int):
        """Harms one worker, perhaps others soon after it, and waits for the reports and for the replacement."""
        harm = self.harms[-1]
        if not self.harm(pid):
            return
        victims = [pid]
        while self.harms and harm is kill and self.harms[-1] is kill and self.rng.random() < 1 / 3:
            time.sleep(self.rng.uniform(0, 0.2))
            others = sorted(set(children_with_role(self.process, "worker")) - set(self.harmed))
            if others and self.harm(other := self.rng.choice(others)):
                victims.append(other)
        with self.has_reported:  # before it looks for the replacement, which costs processor time
            self.has_reported.wait_for(lambda: set(victims) <= set(self.reported) or self.process.poll() is not None, timeout=10)
        begin = self.harmed[pid][1]
        while self.process.poll() is None and time.monotonic() < begin + 60:
            replacement = serving_workers(self.process).get(worker, pid)
            if replacement != pid and has_task(self.process, worker, replacement):
                if len(victims) == 1:
                    self.replaced.append((harm.__name__, time.monotonic() - begin))
                return
            time.sleep(0.005)
        if self.process.poll() is None:
            raise RuntimeError(f"no replacement of worker {worker} has a task within 60 s")
        if len(victims) == 1:
            self.ended.append(harm.__name__)

    def problems(self) -> list[str]:
        """Returns what has happened besides the harm that was done."""
        found = [f"exit code {self.process.returncode}"] if self.process.returncode != 0 else []
        found += [f"process {pid} was lost, too" for pid in sorted(set(self.reported) - set(self.harmed))]
        # At the end of a run, rp-launch kills its workers itself.
        return found + [f"the {name} of process {pid} was not reported" for pid, (name, since) in self.harmed.items()
                        if pid not in self.reported and since < self.end - 1]

    def read(self):
        for line in self.process.stderr:
            self.errors.append(line)
            if found := REPORT.search(line):
                now = time.monotonic()
                with self.has_reported:
                    self.reported.setdefault(int(found[1]), now)
                    self.has_reported.notify()
        with self.has_reported:
            self.has_reported.notify()


def quantiles(values: list[float]) -> str:
    values = sorted(values)
    return (f"median {1e3 * statistics.median(values):.1f} ms, 99th percentile {1e3 * values[int(0.99 * (len(values) - 1))]:.1f} ms, "
            f"maximum {1e3 * values[-1]:.1f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--stops", type=int, default=0)
    parser.add_argument("--hangs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", type=int, help="only this run")
    arguments = parser.parse_args()
    if arguments.kills + arguments.stops + arguments.hangs == 0:
        parser.error("give --kills, --stops or --hangs")
    numbers = range(arguments.runs) if arguments.run is None else [arguments.run]
    detection, replacement, ended, num_good = {}, {}, [], 0
    dying, noticing = [], []  # of killed workers
    for index in numbers:
        rng = random.Random(1000 * arguments.seed + index)
        left = [kill] * arguments.kills + [stop] * arguments.stops + [hang] * arguments.hangs
        rng.shuffle(left)
        workers = index % 8 + 1
        has_pipelines = index % 5 == 4 and arguments.hangs == 0
        num_train_steps = 12 * arguments.kills + 60 * (arguments.stops + arguments.hangs)
        program = PipelinesProgram() if has_pipelines else TrainProgram(num_train_steps, combination(index, arguments.seed))
        launch = ["--max-restarts", "10000", "--on-coordinator-failure", "abort",
                  *(["--wait-timeout", "1"] if arguments.stops + arguments.hangs else [])]
        num_harmed, problems = 0, []
        with tempfile.TemporaryDirectory() as directory:
            alone = Path(directory) / "alone"
            printed = subprocess.run(program.command(alone, 2, []), check=True, capture_output=True, text=True).stdout
            expected = program.result(alone, printed)
            while left and not problems:
                harmed = Path(directory) / f"harmed-{len(left)}"
                num_left = len(left)
                run = HarmedRun(program.command(harmed, workers, launch), harmed, left, rng)
                problems = run.problems()
                if not problems and program.result(harmed, run.printed) != expected:
                    problems = ["not the same bits"]
                num_harmed += len(run.harmed)
                for pid, reported in run.reported.items():
                    if pid not in run.harmed:
                        continue
                    name, since = run.harmed[pid]
                    detection.setdefault(name, []).append(reported - since)
                    if name == "kill":
                        dying.append(run.ends[pid] - since)
                        noticing.append(reported - run.ends[pid])
                for name, seconds in run.replaced:
                    replacement.setdefault(name, []).append(seconds)
                ended += run.ended
                if len(left) == num_left:
                    raise RuntimeError(f"{program.name} ended before any harm was done")
        num_good += not problems
        print(f"run {index}: {workers} workers, {program.name}: {num_harmed} harmed, {', '.join(problems) or 'same bits'}", flush=True)
        if problems:
            print("".join(run.errors[-20:]), f"repeat: {' '.join(sys.argv)} --run {index}", flush=True)
    print(f"{num_good} of {len(numbers)} runs have the same bits and lost nothing else")
    if dying:
        print(f"kill: until the kernel has ended the process: {quantiles(dying)}; from then to its report: {quantiles(noticing)}")
    for name in detection:
        print(f"{name}: to its report: {quantiles(detection[name])} ({len(detection[name])})")
        num_alone = len(replacement.get(name, [])) + ended.count(name)
        print(f"{name}: to the first task of the replacement: {quantiles(replacement[name])} ({len(replacement[name])} of {num_alone} that "
              f"were alone; after {ended.count(name)} the run ended first)")
    return 0 if num_good == len(numbers) else 1


if __name__ == "__main__":
    sys.exit(main())
