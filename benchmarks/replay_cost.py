#!/usr/bin/env python3
"""Measures what readiness for lost processes costs: the same training with the defaults, and with --on-worker-failure abort
--on-coordinator-failure abort, in turns.

    benchmarks/replay_cost.py --pairs 6

Prints the ratios of their median step times and of the processor time of all processes, for synchronous and asynchronous
steps. The losses must be identical to the last bit. Needs the release build and the small model of its tests (ctest -R
make_tiny_model), whose configuration it enlarges to 20 million parameters."""

import argparse
import json
import resource
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


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(output: Path, changes: dict, options: list[str]) -> Run:
    before = processor_seconds()
    subprocess.run(command(output, 2, changes, options), check=True, capture_output=True)
    used = processor_seconds() - before
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return Run(statistics.median(step["seconds"] for step in steps[1:]), used, [step["loss"] for step in steps])


def measure(place: Path, name: str, changes: dict, pairs: int) -> None:
    steps, processors = [], []
    for number in range(pairs):
        order = [("with", []), ("without", WITHOUT)]
        if number % 2 == 1:
            order.reverse()
        runs = {which: run(place / f"{name}-{number}-{which}", changes, options) for which, options in order}
        assert runs["with"].losses == runs["without"].losses, "readiness for lost processes changed a loss"
        steps.append(runs["with"].step_seconds / runs["without"].step_seconds)
        processors.append(runs["with"].processor_seconds / runs["without"].processor_seconds)
        print(f"{name} {number}: step {runs['with'].step_seconds * 1e3:.1f} ms with, {runs['without'].step_seconds * 1e3:.1f} without", flush=True)
    for what, ratios in (("step time", steps), ("processor time", processors)):
        print(f"{name}: ratio of {what}: median {statistics.median(ratios):.4f} ({', '.join(f'{ratio:.4f}' for ratio in ratios)})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rp-replay-cost-") as directory:
        place = Path(directory)
        model = make_model(place / "model", hidden_size=512, intermediate_size=1536, num_hidden_layers=6)
        changes = {"model": model, "max_steps": arguments.steps, "save_every": "never"}
        measure(place, "synchronous", changes, arguments.pairs)
        measure(place, "asynchronous", changes | {"async": True}, arguments.pairs)


if __name__ == "__main__":
    main()
