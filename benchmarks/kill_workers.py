#!/usr/bin/env python3
"""Kills workers of training runs at random times and compares the results with runs that were left alone: how many runs end
with the same bits, how long rp-launch needs to report a death, and how long until a replacement serves.

    benchmarks/kill_workers.py --runs 20 --kills 50 --seed 1

Each run is another combination of 1 to 8 workers, synchronous or asynchronous steps, adapters or all weights, one or two
rounds a step. Needs the release build and the small model of its tests (ctest -R make_tiny_model)."""

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
os.environ |= {"RP_PROGRAMS": str(PROGRAMS), "RP_TINY_MODEL": str(SAMPLE)}  # for launched
from launched import bits, serving_workers, settings  # noqa: E402

DEATH = re.compile(r"rp-launch: worker (\d+) \(pid (\d+)\) was killed by SIGKILL")


def command(output: Path, workers: int, changes: dict, launch: list[str]) -> list[str]:
    return [str(PROGRAMS / "rp-launch"), "--workers", str(workers), *launch, "train", *settings(output, **changes)]


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
            workers = serving_workers(self.process)
            if workers:
                self.kill(*rng.choice(sorted(workers.items())))
        self.process.wait()
        reader.join()

    def kill(self, worker: int, pid: int):
        begin = time.monotonic()
        self.killed[pid] = begin
        os.kill(pid, signal.SIGKILL)
        while self.process.poll() is None and time.monotonic() < begin + 5:
            if serving_workers(self.process).get(worker, pid) != pid:
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
        changes = {"max_steps": 12 * arguments.kills, "save_every": "never"}
        if index % 2 == 0:
            changes["async"] = True
        if index // 2 % 2 == 0:
            changes["lora_rank"] = 4
        if index // 4 % 2 == 0:
            changes["rounds_per_step"] = 2
        file = "adapter_model.safetensors" if "lora_rank" in changes else "model.safetensors"
        with tempfile.TemporaryDirectory() as directory:
            alone, killed = Path(directory) / "alone", Path(directory) / "killed"
            subprocess.run(command(alone, 2, changes, []), check=True, capture_output=True)
            launch = ["--on-worker-failure", "replay", "--max-restarts", "10000"]
            run = KilledRun(command(killed, workers, changes, launch), arguments.kills, rng)
            is_good = run.process.returncode == 0 and bits(killed, file) == bits(alone, file)
        detection += [run.reported[pid] - run.killed[pid] for pid in run.killed if pid in run.reported]
        service += run.served
        kills += len(run.killed)
        good += is_good
        print(f"run {index}: {workers} workers {changes}: {len(run.killed)} kills, exit code {run.process.returncode}, "
              f"{'same bits' if is_good else 'NOT THE SAME'}", flush=True)
        if not is_good:
            print("".join(run.errors[-20:]), f"repeat: --seed {arguments.seed}, run {index}")
    print(f"{good} of {arguments.runs} runs have the same bits, after {kills} kills")
    print(f"from a kill to its report: {quantiles(detection)} ({len(detection)} reports)")
    print(f"from a kill to the service of the replacement: {quantiles(service)} ({len(service)} replacements)")
    return 0 if good == arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
