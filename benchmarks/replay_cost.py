#!/usr/bin/env python3
"""Measures what readiness for lost processes costs: the same training with the defaults, and with --on-worker-failure abort
--on-coordinator-failure abort. Both run at the same time, each on a core of its own, and exchange the cores several times a
second: what slows the machine down slows down both. On one core nothing overlaps, so this counts work and not waits.

    benchmarks/replay_cost.py --pairs 20
    benchmarks/replay_cost.py --pairs 20 --tokens 256     # small steps, in which the optimizer weighs more

Prints the ratio of the times of a step, for synchronous steps, with and without clipping, and asynchronous ones, and of all
pairs together, with the interval that contains the mean with a probability of 95 %. The losses must be identical to the last
bit. Needs the release build and the small model of its tests, whose configuration it enlarges to 20
million parameters."""

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from kill_workers import command  # sets the paths for launched
from launched import children, make_model

WITHOUT = ["--on-worker-failure", "abort", "--on-coordinator-failure", "abort"]
EXCHANGE_S = 0.25  # after this time the two runs exchange their cores


def threads_of(pid: int) -> list[int]:
    """Returns the threads of a process and of those that it has started."""
    found, left = [], [pid]
    while left:
        pid = left.pop()
        try:
            found += [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        except OSError:
            continue  # it has ended
        left += children(pid)
    return found


class StartedRun:
    def __init__(self, output: Path, changes: dict, options: list[str], core: int):
        self.output = output
        words = ["taskset", "-c", str(core), *command(output, 2, changes, options)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def move_to(self, core: int) -> None:
        for thread in threads_of(self.process.pid):
            try:
                os.sched_setaffinity(thread, {core})
            except ProcessLookupError:
                pass  # it has ended

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def steps(self) -> list[dict]:
        self.process.wait()
        if self.process.returncode != 0:
            raise subprocess.CalledProcessError(self.process.returncode, self.process.args)
        return [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]


def step_seconds(runs: list[StartedRun]) -> list[float]:
    """Returns the time of a step of each run, without the first step and the last two, in which one run may be alone."""
    steps = [run.steps() for run in runs]
    assert all([step["loss"] for step in of_run] == [step["loss"] for step in steps[0]] for of_run in steps), "other losses"
    return [statistics.fmean(step["seconds"] for step in of_run[1:-2]) for of_run in steps]


def interval(logarithms: list[float]) -> str:
    """Of logarithms of ratios: their mean, with its interval of 95 %, as ratios."""
    mean = statistics.fmean(logarithms)
    deviation = 1.96 * statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return f"{math.exp(mean):.4f} ({math.exp(mean - deviation):.4f} to {math.exp(mean + deviation):.4f})"


def measure(place: Path, name: str, changes: dict, cores: list[int], pairs: int) -> list[float]:
    ratios = []  # their logarithms
    for number in range(pairs):
        runs = [StartedRun(place / f"{name}-{number}-{index}", changes, options, core)
                for index, (options, core) in enumerate(zip(([], WITHOUT), cores))]
        while not any(run.has_ended() for run in runs):
            time.sleep(EXCHANGE_S)
            cores = cores[::-1]
            for run, core in zip(runs, cores):
                run.move_to(core)
        ready, abort = step_seconds(runs)
        ratios.append(math.log(ready / abort))
        print(f"{name} {number}: {ready / abort:.4f} ({ready * 1e3:.0f} ms)", flush=True)
    print(f"{name}, {pairs} pairs: step time {interval(ratios)}", flush=True)
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=2048, help="in each step, a multiple of 256")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2 or arguments.pairs < 2:
        parser.error("needs two cores and at least two pairs")
    if arguments.tokens < 256 or arguments.tokens % 256 != 0:
        parser.error("--tokens: a multiple of 256")
    with tempfile.TemporaryDirectory(prefix="rp-replay-cost-") as directory:
        place = Path(directory)
        model = make_model(place / "model", hidden_size=512, intermediate_size=1536, num_hidden_layers=6,
                           max_position_embeddings=2048)
        changes = {"model": model, "max_steps": arguments.steps, "batch_size": 8, "sequence_length": arguments.tokens // 8,
                   "save_every": "never"}
        ratios = measure(place, "synchronous", changes, cores, arguments.pairs)
        ratios += measure(place, "synchronous, not clipped", changes | {"max_grad_norm": 0}, cores, arguments.pairs)
        ratios += measure(place, "asynchronous", changes | {"async": True}, cores, arguments.pairs)
        print(f"all, {len(ratios)} pairs: step time {interval(ratios)}")


if __name__ == "__main__":
    main()
