#!/usr/bin/env python3
"""Writes docs/host-sizes.md: what a machine with eight RTX 4090s can fine-tune, by the size of its host memory, as rp-plan predicts it.

    tools/host_sizes.py [--planner build/release/bin/rp-plan] [--models NAME ...]

For each preset and size the first of these ways that fits is given: all weights; pairs of LoRA next to 16-bit weights; pairs next to weights in NF4.
With --models the rows of these models are printed, and the page is not written.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/host-sizes.md"
SIZES = (64, 128, 192, 256)  # GiB
# The system and the programs themselves need some of it.
SHARE = 0.94
COMMON = ["--gpus", "8", "--gpu", "rtx4090", "--batch-size", "16", "--sequence-length", "2048", "--effort", "fast", "--json"]
PAIRS = ["--lora-rank", "16"]
# Name, options, and bytes of host memory that a parameter needs at the very least.
WAYS = (("all weights", [], 16.0), ("LoRA", [*PAIRS, "--quantize", "none"], 2.0), ("LoRA, NF4", [*PAIRS, "--quantize", "nf4"], 0.5))

HEAD = """# What fits into which host
Eight RTX 4090s, 16 sequences of 2048 tokens a step. Each cell has the first of three ways of training that fits, and the
tokens per second that `rp-plan` predicts for it: "all weights" is full training with AdamW, "LoRA" are pairs of rank
16 at all linear layers of attention and dense MLPs (not at experts) next to 16-bit weights, "LoRA, NF4" next to weights in
[NF4](train.md#quantised-frozen-weights), or in the MXFP4 of GPT-OSS's files. {share:.0f} % of the memory are for the run. With fewer GPUs the same fits, and
takes longer; what a single layer needs must fit into a GPU. The speeds are predictions without a measurement on this
machine, and models with experts are slower than predicted ([what is known of the errors](design/cost-model.md)).

This page is written by `tools/host_sizes.py`. For other GPUs, batches or lengths ask [rp-plan](planning.md).

"""


def prediction(planner: str, model: str, size: int, options: list[str]) -> dict:
    command = [planner, "plan", "--model", model, "--host-memory", f"{int(size * SHARE * 1024)}M", *COMMON, *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def cell(planner: str, model: str, size: int, parameters: int) -> str:
    for name, options, least in WAYS:
        if parameters * least > size * SHARE * 2**30:
            continue
        asked = prediction(planner, model, size, options)["asked"]
        if asked.get("fits_gpu") and asked.get("fits_host"):
            return f"{name}: {asked['tokens_per_s']:,.0f}"
    return "-"


def row(planner: str, model: str) -> tuple[int, str]:
    """Returns the number of parameters, and the line of the table."""
    parameters = prediction(planner, model, max(SIZES), [])["parameters"]
    cells = [cell(planner, model, size, parameters) for size in SIZES]
    return parameters, f"| {model} | {parameters / 1e9:.3g} | {' | '.join(cells)} |"


def presets() -> list[str]:
    return sorted(json.loads((ROOT / "model_files/config/presets.json").read_text()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planner", default=str(ROOT / "build/release/bin/rp-plan"))
    parser.add_argument("--models", nargs="+")
    arguments = parser.parse_args()
    models = arguments.models or presets()
    with ThreadPoolExecutor() as pool:
        rows = sorted(pool.map(lambda model: row(arguments.planner, model), models))
    lines = [line for _, line in rows]
    if arguments.models:
        print("\n".join(lines))
        return 0
    titles = ["model", "billion parameters", *(f"{size} GB" for size in SIZES)]
    table = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *lines]
    PAGE.write_text(HEAD.format(share=100 * SHARE) + "\n".join(table) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
