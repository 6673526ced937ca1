#!/usr/bin/env python3
"""Kills, stops or hangs workers of training runs at random times and compares the results with runs that were left alone: how
many runs end with the same bits, how long rp-launch needs to report the harm, and how long until a replacement serves.

    benchmarks/kill_workers.py --runs 20 --kills 50 --seed 1
    benchmarks/kill_workers.py --runs 20 --stops 5 --hangs 5 --seed 1      # with --wait-timeout 1

Each run is another combination of 1 to 8 workers, synchronous or asynchronous steps, adapters or all weights, one or two
rounds a step. If there are no hangs, every fifth run is one of bits_program instead of train, which trains four models in one
session; it is repeated until all harm is done. Needs the release build and the small model of its tests (ctest -R
make_tiny_model)."""

import argparse
import os
import random
import re
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
from launched import bits, hang, may_hang, serving_workers, settings  # noqa: E402

REPORT = re.compile(r"rp-launch: worker \d+ \(pid (\d+)\) (?:was killed by SIGKILL|is stopped by a signal|hangs)")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def command(output: Path, workers: int, changes: dict, launch: list[str]) -> list[str]:
    return [str(PROGRAMS / "rp-launch"), "--workers", str(workers), *launch, "train", *settings(output, **changes)]


def num_steps(output: Path) -> int:
    file = output / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


class TrainProgram:
    """A run of train. `index` selects the combination of settings."""

    def __init__(self, index: int, num_steps: int):
        self.changes = {"max_steps": num_steps, "save_every": "never"}
        if index % 2 == 0:
            self.changes["async"] = True
        if index // 2 % 2 == 0:
            self.changes["lora_rank"] = 4
        if index // 4 % 2 == 0:
            self.changes["rounds_per_step"] = 2
        self.name = f"train {self.changes}"

    def command(self, output: Path, workers: int, launch: list[str]) -> list[str]:
        return command(output, workers, self.changes, launch)

    def result(self, output: Path, _printed: str) -> tuple:
        return bits(output, "adapter_model.safetensors" if "lora_rank" in self.changes else "model.safetensors")


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
        self.reported = {}  # pid -> time
        self.served = []  # (name of the harm, from the harm to the replacement's service)
        printed = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(words, stdout=printed, stderr=subprocess.PIPE, text=True, env=may_hang())
        self.errors = []
        self.has_reported = threading.Condition()
        reader = threading.Thread(target=self.read)
        reader.start()
        steps = 0
        while self.process.poll() is None and harms:
            time.sleep(rng.uniform(0.02, 0.2))
            workers = serving_workers(self.process)
            # Three hangs of the same task end a run.
            if workers and (harms[-1] is not hang or num_steps(output) > steps):
                steps = num_steps(output)
                worker, pid = rng.choice(sorted(workers.items()))
                try:
                    self.harm(harms[-1], worker, pid)
                except ProcessLookupError:  # it has just ended
                    del self.harmed[pid]
                else:
                    harms.pop()
        self.process.wait()
        reader.join()
        printed.seek(0)
        self.printed = printed.read()

    def harm(self, harm, worker: int, pid: int):
        begin = time.monotonic()
        self.harmed[pid] = (harm.__name__, begin)
        harm(pid)
        with self.has_reported:  # before it looks for the replacement, which costs processor time
            self.has_reported.wait_for(lambda: pid in self.reported or self.process.poll() is not None, timeout=10)
        while self.process.poll() is None and time.monotonic() < begin + 10:
            if serving_workers(self.process).get(worker, pid) != pid:
                self.served.append((harm.__name__, time.monotonic() - begin))
                return
            time.sleep(0.005)

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
    arguments = parser.parse_args()
    if arguments.kills + arguments.stops + arguments.hangs == 0:
        parser.error("give --kills, --stops or --hangs")
    harms = [kill] * arguments.kills + [stop] * arguments.stops + [hang] * arguments.hangs
    detection, service, good = {}, {}, 0
    for index in range(arguments.runs):
        rng = random.Random(1000 * arguments.seed + index)
        rng.shuffle(harms)
        workers = index % 8 + 1
        has_pipelines = index % 5 == 4 and arguments.hangs == 0
        program = PipelinesProgram() if has_pipelines else TrainProgram(index, 12 * arguments.kills + 60 * (arguments.stops + arguments.hangs))
        launch = ["--max-restarts", "10000"] + (["--wait-timeout", "1"] if arguments.stops + arguments.hangs else [])
        left, num_harmed, is_good = list(harms), 0, True
        with tempfile.TemporaryDirectory() as directory:
            alone = Path(directory) / "alone"
            printed = subprocess.run(program.command(alone, 2, []), check=True, capture_output=True, text=True).stdout
            expected = program.result(alone, printed)
            while is_good and left:
                harmed = Path(directory) / f"harmed-{len(left)}"
                num_left = len(left)
                run = HarmedRun(program.command(harmed, workers, launch), harmed, left, rng)
                is_good = run.process.returncode == 0 and program.result(harmed, run.printed) == expected
                num_harmed += len(run.harmed)
                for pid, (name, since) in run.harmed.items():
                    detection.setdefault(name, []).append(run.reported.get(pid, float("inf")) - since)
                for name, seconds in run.served:
                    service.setdefault(name, []).append(seconds)
                if len(left) == num_left:
                    raise RuntimeError(f"{program.name} ended before any harm was done")
        good += is_good
        print(f"run {index}: {workers} workers, {program.name}: {num_harmed} harmed, exit code {run.process.returncode}, "
              f"{'same bits' if is_good else 'NOT THE SAME'}", flush=True)
        if not is_good:
            print("".join(run.errors[-20:]), f"repeat: --seed {arguments.seed}, run {index}")
    print(f"{good} of {arguments.runs} runs have the same bits")
    for name in detection:
        print(f"{name}: to its report: {quantiles(detection[name])} ({len(detection[name])})")
        print(f"{name}: to the service of the replacement: {quantiles(service[name])} ({len(service[name])})")
    return 0 if good == arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
