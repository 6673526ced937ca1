#!/usr/bin/env python3
"""Measures the cost of checkpoints: the same training without any and with one every few steps, in turns.

Prints the seconds per step without the first step, and their ratio. The losses must be identical to the last bit. Needs the model and the
data that scripts/quickstart.sh makes.
"""
import argparse
import json
import shutil
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(arguments, every):
    output = arguments.place / "save-cost"
    shutil.rmtree(output, ignore_errors=True)
    command = [ROOT / "build/release/bin/rp-launch", "--workers", "2", "train", "--model", arguments.place / "model", "--data",
               arguments.place / "jargon.tokens", "--output", output, "--max-steps", arguments.steps, "--batch-size", 4, "--num-microbatches",
               1, "--rounds-per-step", 2, "--sequence-length", 512, "--save-every", every, "--save-total-limit", 2]
    shown = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(output)
    took = [line.rsplit(" in ", 1)[1] for line in shown.replace("; ", "\n").splitlines() if line.startswith("checkpoint of step")]
    return sum(step["seconds"] for step in steps[1:]) / (len(steps) - 1), [step["loss"] for step in steps], took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, default=ROOT / "run/quickstart", help="with model/ and jargon.tokens")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=4, help="steps from one checkpoint to the next")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    without, with_them = [], []
    for number in range(arguments.rounds):
        seconds, losses, _ = run(arguments, "never")
        without.append(seconds)
        seconds, same, took = run(arguments, arguments.every)
        with_them.append(seconds)
        assert losses == same, "checkpoints changed a loss"
        print(f"{number}: without {without[-1]:.3f} s a step, with one every {arguments.every} steps {with_them[-1]:.3f}; "
              f"they took {', '.join(took)}", flush=True)
    pairs = [b / a for a, b in zip(without, with_them)]
    print(f"medians {statistics.median(without):.3f} and {statistics.median(with_them):.3f} s; ratio {statistics.median(pairs):.4f} "
          f"({', '.join(f'{p:.4f}' for p in pairs)})")


if __name__ == "__main__":
    main()
