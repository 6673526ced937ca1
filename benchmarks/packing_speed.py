#!/usr/bin/env python3
"""Compares the training speed of packed and of padded sequences, in turns, with 2 workers of one thread each, in tokens of text per second.

Padding is not counted. Prints the medians of all rounds, without the first step of each run, and their ratio to the first row. Needs the
model and the data that scripts/quickstart.sh makes.
"""
import argparse
import json
import shutil
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG = ["--max-steps", 7, "--batch-size", 4, "--num-microbatches", 1, "--rounds-per-step", 2, "--sequence-length", 512]
ROWS = {
    "padded to 128 tokens": ["--no-packing", "--max-steps", 14, "--batch-size", 8, "--num-microbatches", 4, "--sequence-length", 128],
    "padded to 512 tokens": ["--no-packing", *LONG],
    "packed into 512 tokens": LONG,
}


def tokens_per_second(place: Path, options: list) -> tuple[float, float]:
    """Runs one training; returns its tokens per second without padding, and the share of padding."""
    output = place / "packing-speed"
    shutil.rmtree(output, ignore_errors=True)
    command = [ROOT / "build/release/bin/rp-launch", "--workers", 2, "train", "--model", place / "model", "--data", place / "jargon.tokens",
               "--output", output, "--save-every", "never", *options]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][1:]
    shutil.rmtree(output)
    tokens, padding = (sum(step[name] for step in steps) for name in ("tokens", "padded_tokens"))
    return tokens / sum(step["seconds"] for step in steps), padding / (tokens + padding)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, default=ROOT / "run/quickstart", help="with model/ and jargon.tokens")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    figures = {name: [] for name in ROWS}
    for _ in range(arguments.rounds):
        for name, options in ROWS.items():
            figures[name].append(tokens_per_second(arguments.place, options))
    first = None
    for name, its in figures.items():
        speed = statistics.median(speed for speed, _ in its)
        first = first or speed
        print(f"{name}: {speed:.1f} tokens/s ({', '.join(f'{each:.1f}' for each, _ in its)}), {speed / first:.2f}; padding {100 * its[0][1]:.1f} %")


if __name__ == "__main__":
    main()
