#!/usr/bin/env python3
"""Kills the coordinator of training runs, at random times and while it applies a step, and compares the results with runs that
were left alone: how many runs end with the same bits, and how long until the program is back at work.

    benchmarks/kill_coordinator.py --runs 20 --kills 10 --seed 1

Each run is another combination of 1 to 4 workers, synchronous or asynchronous steps, adapters or all weights, one or two
rounds a step. Three of four kills wait until the thread that applies steps runs. Needs the release build and the small model
of its tests (ctest -R make_tiny_model)."""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kill_workers import command, num_steps, quantiles  # sets the paths for launched
from launched import bits, coordinator_of, make_model, metrics, serving_workers, wait_until_applying


def kill_coordinator(process: subprocess.Popen, output: Path, while_applying: bool, rng: random.Random) -> float:
    """Returns the seconds until a worker of the program that was started again serves."""
    steps = num_steps(output)
    while process.poll() is None and num_steps(output) == steps:
        time.sleep(0.002)
    if process.poll() is not None:
        raise RuntimeError("the run has ended")
    pid = coordinator_of(process)
    if while_applying:
        wait_until_applying(pid)
    else:
        time.sleep(rng.uniform(0, 0.1))
    before = set(serving_workers(process).values())
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while process.poll() is None and not set(serving_workers(process).values()) - before:
        time.sleep(0.005)
    return time.monotonic() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    back, good, num_applying = [], 0, 0
    for index in range(arguments.runs):
        rng = random.Random(1000 * arguments.seed + index)
        workers = index % 4 + 1
        changes = {"max_steps": 10 * arguments.kills + 20, "save_every": "never"}
        if index % 2 == 0:
            changes["async"] = True
        if index % 4 == 3:
            changes["lora_rank"] = 4
        if index // 2 % 2 == 0:
            changes["rounds_per_step"] = 2
        file = "adapter_model.safetensors" if "lora_rank" in changes else "model.safetensors"
        with tempfile.TemporaryDirectory() as directory:
            # Larger than the small model, so that a step takes some milliseconds to apply.
            changes["model"] = make_model(Path(directory) / "model", hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
            alone, killed = Path(directory) / "alone", Path(directory) / "killed"
            subprocess.run(command(alone, 2, changes, []), check=True, capture_output=True)
            with (Path(directory) / "log").open("w") as log:
                process = subprocess.Popen(command(killed, workers, changes, ["--max-restarts", "10000"]), stdout=log, stderr=log)
                try:
                    for number in range(arguments.kills):
                        back.append(kill_coordinator(process, killed, number % 4 != 3, rng))
                except (RuntimeError, ProcessLookupError):
                    print("the run was too short for all kills")
                process.wait()
            text = (Path(directory) / "log").read_text()
            num_applying += text.count("was being applied when the coordinator died")
            steps = [line["step"] for line in metrics(killed)]
            is_good = (process.returncode == 0 and bits(killed, file) == bits(alone, file)
                       and steps == list(range(1, changes["max_steps"] + 1)))
        good += is_good
        shown = {name: value for name, value in changes.items() if name != "model"}
        print(f"run {index}: {workers} workers {shown}: exit code {process.returncode}, {'same bits' if is_good else 'NOT THE SAME'}",
              flush=True)
        if not is_good:
            print(text[-3000:], f"repeat: --seed {arguments.seed}, run {index}")
    print(f"{good} of {arguments.runs} runs have the same bits and each step once, after {len(back)} kills, {num_applying} of them "
          "with updates of a step left to make")
    print(f"from a kill to the service of the first worker of the program that is started again: {quantiles(back)}")
    return 0 if good == arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
