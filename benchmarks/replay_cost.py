#!/usr/bin/env python3
"""Measures what readiness for lost processes costs: the same training with the defaults, and with --on-worker-failure abort
--on-coordinator-failure abort. Both run at the same time, each on a core of its own, and then once more with the cores
exchanged: what slows the machine down slows down both. On one core nothing overlaps, so this counts work and not waits.

    benchmarks/replay_cost.py --pairs 30

Prints the ratios of their median step times and of the processor time of all processes, for synchronous steps, with and
without clipping, and asynchronous ones, each with the interval that contains the mean with a probability of 95 %. The losses must be identical to the last bit.
Needs the release build and the small model of its tests (ctest -R make_tiny_model), whose configuration it enlarges to 20
million parameters."""

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kill_workers import command  # sets the paths for launched
from launched import make_model

WITHOUT = ["--on-worker-failure", "abort", "--on-coordinator-failure", "abort"]


@dataclass
class Run:
    step_seconds: float  # median, without the first step
    processor_seconds: float
    losses: list[float]


class StartedRun:
    def __init__(self, output: Path, changes: dict, options: list[str], core: int):
        self.output = output
        words = ["taskset", "-c", str(core), *command(output, 2, changes, options)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self) -> Run:
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            raise subprocess.CalledProcessError(self.process.returncode, self.process.args)
        steps = [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]
        return Run(statistics.median(step["seconds"] for step in steps[1:]), used.ru_utime + used.ru_stime,
                   [step["loss"] for step in steps])


def interval(logarithms: list[float]) -> str:
    """Of logarithms of ratios: their mean, with its interval of 95 %, as ratios."""
    mean = statistics.fmean(logarithms)
    deviation = 1.96 * statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return f"{math.exp(mean):.4f} ({math.exp(mean - deviation):.4f} to {math.exp(mean + deviation):.4f})"


def measure(place: Path, name: str, changes: dict, cores: list[int], pairs: int) -> None:
    steps, processors = [], []  # logarithms of ratios, a pair each
    for number in range(pairs):
        step = processor = 0.0
        for order in (cores, cores[::-1]):
            started = [StartedRun(place / f"{name}-{number}-{order[0]}-{index}", changes, options, core)
                       for index, (options, core) in enumerate(zip(([], WITHOUT), order))]
            ready, abort = (run.end() for run in started)
            assert ready.losses == abort.losses, "readiness for lost processes changed a loss"
            step += math.log(ready.step_seconds / abort.step_seconds) / 2
            processor += math.log(ready.processor_seconds / abort.processor_seconds) / 2
        steps.append(step)
        processors.append(processor)
        print(f"{name} {number}: step {math.exp(step):.4f} (about {ready.step_seconds * 1e3:.0f} ms), processor {math.exp(processor):.4f}",
              flush=True)
    print(f"{name}, {pairs} pairs: step time {interval(steps)}, processor time {interval(processors)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sequences", type=int, default=8, help="of 32 tokens, in each step")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2 or arguments.pairs < 2:
        parser.error("needs two cores and at least two pairs")
    with tempfile.TemporaryDirectory(prefix="rp-replay-cost-") as directory:
        place = Path(directory)
        model = make_model(place / "model", hidden_size=512, intermediate_size=1536, num_hidden_layers=6)
        changes = {"model": model, "max_steps": arguments.steps, "batch_size": arguments.sequences, "save_every": "never"}
        measure(place, "synchronous", changes, cores, arguments.pairs)
        measure(place, "synchronous, not clipped", changes | {"max_grad_norm": 0}, cores, arguments.pairs)
        measure(place, "asynchronous", changes | {"async": True}, cores, arguments.pairs)


if __name__ == "__main__":
    main()
