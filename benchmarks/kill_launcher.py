#!/usr/bin/env python3
"""Kills rp-launch at random times of training runs, resumes them, and compares the results with runs that were left alone: how
many end with the same bits, and how long until all processes of a killed run are gone.

    benchmarks/kill_launcher.py --runs 20 --kills 15 --seed 1

Each run has another combination of 1 to 4 workers, synchronous or asynchronous steps, adapters or all weights, one or two
rounds a step. A kill comes up to 1.2 s after the start: while processes start, attach, train or write checkpoints. One in
eight comes up to 6 s after it. After each kill nothing may be left in /dev/shm. Needs the release build and the small model of
its tests."""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kill_workers import combination, command, num_steps, quantiles  # sets the paths for launched
from launched import bits, children, metrics, state_bits


def start_time(pid: int) -> str | None:
    """Returns when a process was started, or None if it is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def descendants_of(pid: int) -> dict[int, str]:
    """Returns the processes that a process has started, and theirs, with their start times."""
    found = {}
    for child in children(pid):
        found |= {child: start_time(child)} | descendants_of(child)
    return {child: begun for child, begun in found.items() if begun is not None}


def kill_launcher(process: subprocess.Popen, delay: float) -> tuple[float, int] | None:
    """Returns the seconds until all other processes were gone, and their number; None if the run ended before."""
    try:
        process.wait(timeout=delay)
        return None
    except subprocess.TimeoutExpired:
        pass
    # Stopped first, because a process that it starts while the others are listed would be missed.
    os.kill(process.pid, signal.SIGSTOP)
    others = descendants_of(process.pid)
    begin = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while any(start_time(pid) == begun for pid, begun in others.items()):
        if time.monotonic() - begin > 30:
            raise RuntimeError(f"processes are left: {sorted(others)}")
        time.sleep(0.001)
    return time.monotonic() - begin, len(others)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", type=int, help="only this run")
    arguments = parser.parse_args()
    numbers = range(arguments.runs) if arguments.run is None else [arguments.run]
    gone, good, num_processes, left = [], 0, 0, set()
    for index in numbers:
        rng = random.Random(1000 * arguments.seed + index)
        workers = index % 4 + 1
        changes = {"max_steps": 20 * arguments.kills, "save_every": 3, "save_total_limit": 2, "resume": "auto"}
        changes |= combination(index, arguments.seed)
        file = "adapter_model.safetensors" if "lora_rank" in changes else "model.safetensors"
        shared = set(os.listdir("/dev/shm"))
        with tempfile.TemporaryDirectory() as directory:
            alone, killed, log = Path(directory) / "alone", Path(directory) / "killed", Path(directory) / "log"
            subprocess.run(command(alone, 2, changes, []), check=True, capture_output=True)
            words = command(killed, workers, changes, [])
            num_kills = 0
            with log.open("w") as file_of_log:
                while num_kills < arguments.kills:
                    delay = rng.uniform(0, 6 if num_kills % 8 == 7 else 1.2)
                    kill = kill_launcher(subprocess.Popen(words, stdout=file_of_log, stderr=file_of_log), delay)
                    if kill is None:
                        break
                    num_kills += 1
                    gone.append(kill[0])
                    num_processes += kill[1]
                    left |= set(os.listdir("/dev/shm")) - shared
                steps = num_steps(killed)
                code = subprocess.run(words, stdout=file_of_log, stderr=file_of_log, check=False).returncode
            is_good = (code == 0 and num_kills == arguments.kills and bits(killed, file) == bits(alone, file)
                       and state_bits(killed) == state_bits(alone)
                       and [line["step"] for line in metrics(killed)] == list(range(1, changes["max_steps"] + 1)))
            text = log.read_text()
        good += is_good
        print(f"run {index}: {workers} workers {changes}: {num_kills} kills, the last after {steps} steps, exit code {code}, "
              f"{'same bits' if is_good else 'NOT THE SAME'}", flush=True)
        if not is_good:
            print(text[-3000:], f"repeat: {' '.join(sys.argv)} --run {index}")
    print(f"{good} of {len(numbers)} runs have the same bits, after {len(gone)} kills of rp-launch; left in /dev/shm: {sorted(left)}")
    print(f"from a kill until all of {num_processes} other processes are gone: {quantiles(gone)}")
    return 0 if good == len(numbers) and not left else 1


if __name__ == "__main__":
    sys.exit(main())
