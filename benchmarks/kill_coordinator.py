#!/usr/bin/env python3
"""Kills the coordinator of training runs, at random times and while it applies a step, and compares the results with runs that
were left alone: how many runs end with the same bits, whether a step was lost, and how long until the program has made another
step.

    benchmarks/kill_coordinator.py --runs 20 --kills 10 --seed 1
    benchmarks/kill_coordinator.py --kills 10 --seed 1 --run 3              # run 3 of the first command, alone

Each run has another combination of 1 to 4 workers, synchronous or asynchronous steps, adapters or all weights, one or two
rounds a step. Three of four kills wait until the thread that applies steps runs. After one kill in seven another one follows
within 1 s, when the program is being started again. A run is good if it has the same losses, weights, masters and moments, and
if the program went on each time behind the last step that it had reported. Needs the release build and the small model of its
tests."""

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

from kill_workers import combination, command, num_steps, quantiles  # sets the paths for launched
from launched import bits, coordinator_of, make_model, metrics, state_bits, wait_until_applying

APPLYING = "was being applied when the coordinator died"


class KilledRun:
    def __init__(self, words: list[str], output: Path, num_kills: int, rng: random.Random):
        self.output, self.rng = output, rng
        self.log = output.with_suffix(".log")
        self.back = []  # seconds from a kill to the next step
        self.num_kills = 0
        self.problems = []
        with self.log.open("w") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
            while self.num_kills < num_kills and self.wait_for_steps(num_steps(output) + 1):
                self.kill_at_a_step(has_second=self.num_kills % 8 == 0 and self.num_kills + 1 < num_kills)
            if self.process.wait() != 0:
                self.problems.append(f"exit code {self.process.returncode}")
        if self.num_kills < num_kills:
            self.problems.append(f"the run ended after {self.num_kills} of {num_kills} kills")

    def wait_for_steps(self, number: int) -> bool:
        """Waits until that many steps are reported. Returns false if the run ended before."""
        while self.process.poll() is None and num_steps(self.output) < number:
            time.sleep(0.002)
        return num_steps(self.output) >= number

    def kill(self):
        os.kill(coordinator_of(self.process), signal.SIGKILL)
        self.num_kills += 1

    def kill_at_a_step(self, has_second: bool):
        if self.num_kills % 4 != 3:
            wait_until_applying(coordinator_of(self.process))
        else:
            time.sleep(self.rng.uniform(0, 0.1))
        before = self.log.stat().st_size
        begin = time.monotonic()
        self.kill()
        if has_second:
            time.sleep(self.rng.uniform(0, 1))
            self.kill()
        time.sleep(0.02)  # the dead process reports no more steps
        reported = num_steps(self.output)
        if not self.wait_for_steps(reported + 1):
            return
        if not has_second:
            self.back.append(time.monotonic() - begin)
        went_on = re.findall(r"goes on after step (\d+) of", self.log.read_text()[before:])
        if not went_on or int(went_on[-1]) < reported:
            self.problems.append(f"{reported} steps were reported, and it went on after {went_on}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", type=int, help="only this run")
    arguments = parser.parse_args()
    numbers = range(arguments.runs) if arguments.run is None else [arguments.run]
    back, num_good, num_kills, num_applying = [], 0, 0, 0
    for index in numbers:
        rng = random.Random(1000 * arguments.seed + index)
        workers = index % 4 + 1
        num_to_do = 14 * arguments.kills + 30
        changes = {"max_steps": num_to_do, "save_every": num_to_do} | combination(index, arguments.seed)
        file = "model.safetensors"
        if "lora_rank" in changes:
            changes["lora_rank"] = 64
            file = "adapter_model.safetensors"
        shown = dict(changes)
        with tempfile.TemporaryDirectory() as directory:
            # Larger than the small model, and with adapters of a larger rank, so that a step takes some milliseconds to apply.
            changes["model"] = make_model(Path(directory) / "model", hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
            alone, killed = Path(directory) / "alone", Path(directory) / "killed"
            subprocess.run(command(alone, 2, changes, []), check=True, capture_output=True)
            run = KilledRun(command(killed, workers, changes, ["--max-restarts", "10000"]), killed, arguments.kills, rng)
            text = run.log.read_text()
            problems = run.problems
            if not problems and (bits(killed, file), state_bits(killed)) != (bits(alone, file), state_bits(alone)):
                problems.append("not the same bits")
            if not problems and [line["step"] for line in metrics(killed)] != list(range(1, num_to_do + 1)):
                problems.append("not each step once")
        num_kills += run.num_kills
        num_applying += text.count(APPLYING)
        back += run.back
        num_good += not problems
        print(f"run {index}: {workers} workers {shown}: {', '.join(problems) or 'same bits, no step lost'}", flush=True)
        if problems:
            print(text[-3000:], f"repeat: {' '.join(sys.argv)} --run {index}", flush=True)
    print(f"{num_good} of {len(numbers)} runs have the same bits and each step once and lost none, after {num_kills} kills, {num_applying} of "
          "them with updates of a step left to make")
    print(f"from a kill to the next step that the program reports: {quantiles(back)} ({len(back)} kills that were not followed by another)")
    return 0 if num_good == len(numbers) else 1


if __name__ == "__main__":
    sys.exit(main())
