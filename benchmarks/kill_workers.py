#!/usr/bin/env python3
"""Kills workers of training runs at random times and compares the results with runs that were left alone: how many runs end
with the same bits, how long rp-launch needs to report a death, and how long until a replacement serves.

    benchmarks/kill_workers.py --runs 20 --kills 50 --seed 1

Each run is another combination of 1 to 8 workers, synchronous or asynchronous steps, adapters or all weights, one or two
rounds a step. Needs the release build and the small model of its tests (ctest -R make_tiny_model)."""

import argparse
import hashlib
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
DEATH = re.compile(r"rp-launch: worker (\d+) \(pid (\d+)\) was killed by SIGKILL")


def command(output: Path, workers: int, steps: int, options: list[str], launch: list[str]) -> list[str]:
    return [str(PROGRAMS / "rp-launch"), "--workers", str(workers), *launch, "train", "--model", str(SAMPLE / "model"), "--data",
            str(SAMPLE / "data.tokens"), "--output", str(output), "--max-steps", str(steps), "--save-every", "never",
            "--batch-size", "8", "--num-microbatches", "3", "--sequence-length", "32", *options]


def serving(launcher: int) -> dict[int, int]:
    """Returns the workers that serve: pids by number."""
    found = {}
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    except OSError:
        return found
    for pid in children:
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            threads = {(task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()}
        except OSError:
            continue
        if ":worker" in name and "rp-compute" in threads:
            found[int(name.split(":worker")[1])] = int(pid)
    return found


def bits(output: Path) -> tuple:
    losses = [line.split('"loss": ')[1].split(",")[0] for line in (output / "metrics.jsonl").read_text().splitlines()]
    files = sorted((output / "final").glob("*.safetensors"))
    return losses, [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


class KilledRun:
    """One run whose workers are killed. Times are in seconds of the monotonic clock."""

    def __init__(self, words: list[str], kills: int, rng: random.Random):
        self.killed = {}  # pid -> time
        self.reported = {}  # pid -> time
        self.served = []  # from the kill to the replacement's service
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.errors = []
        reader = threading.Thread(target=self.read)
        reader.start()
        while self.process.poll() is None and len(self.killed) < kills:
            time.sleep(rng.uniform(0.02, 0.2))
            workers = serving(self.process.pid)
            if workers:
                self.kill(*rng.choice(sorted(workers.items())))
        self.process.wait()
        reader.join()

    def kill(self, worker: int, pid: int):
        begin = time.monotonic()
        self.killed[pid] = begin
        os.kill(pid, signal.SIGKILL)
        while self.process.poll() is None and time.monotonic() < begin + 5:
            if serving(self.process.pid).get(worker, pid) != pid:
                self.served.append(time.monotonic() - begin)
                return
            time.sleep(0.002)

    def read(self):
        for line in self.process.stderr:
            self.errors.append(line)
            if found := DEATH.search(line):
                self.reported[int(found[2])] = time.monotonic()


def quantiles(values: list[float]) -> str:
    values = sorted(values)
    return (f"median {1e3 * statistics.median(values):.1f} ms, 99th percentile {1e3 * values[int(0.99 * (len(values) - 1))]:.1f} ms, "
            f"maximum {1e3 * values[-1]:.1f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    detection, service, good, kills = [], [], 0, 0
    for index in range(arguments.runs):
        rng = random.Random(1000 * arguments.seed + index)
        workers = index % 8 + 1
        options = [["--async"], []][index % 2] + [["--lora-rank", "4"], []][index // 2 % 2] + [["--rounds-per-step", "2"], []][index // 4 % 2]
        steps = 12 * arguments.kills
        with tempfile.TemporaryDirectory() as directory:
            alone, killed = Path(directory) / "alone", Path(directory) / "killed"
            subprocess.run(command(alone, 2, steps, options, []), check=True, capture_output=True)
            launch = ["--on-worker-failure", "replay", "--max-restarts", "10000"]
            run = KilledRun(command(killed, workers, steps, options, launch), arguments.kills, rng)
            is_good = run.process.returncode == 0 and bits(killed) == bits(alone)
        detection += [run.reported[pid] - run.killed[pid] for pid in run.killed if pid in run.reported]
        service += run.served
        kills += len(run.killed)
        good += is_good
        print(f"run {index}: {workers} workers {' '.join(options)}: {len(run.killed)} kills, exit code {run.process.returncode}, "
              f"{'same bits' if is_good else 'NOT THE SAME'}", flush=True)
        if not is_good:
            print("".join(run.errors[-20:]), f"repeat: --seed {arguments.seed}, run {index}")
    print(f"{good} of {arguments.runs} runs have the same bits, after {kills} kills")
    print(f"from a kill to its report: {quantiles(detection)} ({len(detection)} reports)")
    print(f"from a kill to the service of the replacement: {quantiles(service)} ({len(service)} replacements)")
    return 0 if good == arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
