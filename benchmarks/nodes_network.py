#!/usr/bin/env python3
"""Runs train on two nodes of two emulated GPUs each, which take the time of real ones and compute nothing, over a real network with a
limited rate: how long a step takes, how long the simulator says it takes, and how much of it is the network's.

    benchmarks/nodes_network.py --rate 10gbit --batch-size 56

The nodes are hosts in network namespaces (tests/system/hosts.py) with frames of 65,000 bytes, which stand for what the cards of real
hosts take off their processors. Prints a table. "alone": a step of one node that computes its own round and has no network. "busy": the
part of the step in which the simulated link moves data. Needs the release build."""

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import kill_workers  # noqa: F401, sets the paths for launched
from launched import PROGRAMS

from hosts import Hosts

# The shape of a small Llama with 0.125 billion parameters, of which the embedding has 7.5 %, as that of an 8 B model.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16384, "hidden_size": 576, "intermediate_size": 1536,
          "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 8192,
          "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16"}
# Many short backward stages, so that gradients leave early.
PLAN = "forward 0-1 2-5 6-11 12-18 19-28 | fused 29-31 | backward 25-28 19-24 14-18 13 12 10-11 8-9 6-7 4-5 3 2 0-1"
PARAMETERS = 2 * 9.44e6 + 30 * 3.54e6
FRAMES = 0.99  # the part of a frame that is data


def gbits(rate: str) -> float:
    match = re.fullmatch(r"([0-9.]+)gbit", rate)
    if not match:
        raise argparse.ArgumentTypeError(f"{rate}: not a rate such as 10gbit")
    return float(match[1])


def step_of(output: str) -> tuple[float, float]:
    """Returns the measured and the simulated step of the first report, in ms."""
    found = re.search(r"step +([\d.]+) ms +simulated +([\d.]+) ms", output)
    if not found:
        raise SystemExit(output)
    return float(found[1]), float(found[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=gbits, default="10gbit")
    parser.add_argument("--batch-size", type=int, default=56)
    parser.add_argument("--num-microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    payload = arguments.rate * FRAMES
    network_ms = 2 * PARAMETERS / (payload / 8 * 1e9) * 1e3  # gradients and weights: half of 2 bytes a parameter, each
    print(f"{arguments.rate:g} Gbit/s, {network_ms:.0f} ms of network a step\n")
    print("| steps | alone | measured | simulated | measured / simulated | network's part of the step | exposed |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory, Hosts(2, Path(directory) / "hosts", shm="4g") as hosts:
        model = Path(directory) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        plan = Path(directory) / "plan"
        plan.write_text(PLAN)
        hosts.set_mtu(65000)
        hosts.shape(f"{arguments.rate:g}gbit")
        for kind in ("synchronous", "asynchronous"):
            for _ in range(arguments.repeat):
                alone, _ = step_of(run(hosts, 1, arguments, kind, model, plan, payload))
                measured, simulated = step_of(run(hosts, 2, arguments, kind, model, plan, payload))
                print(f"| {kind} | {alone:.1f} ms | {measured:.1f} ms | {simulated:.1f} ms | {measured / simulated:.3f} | "
                      f"{network_ms / measured:.0%} | {(measured - alone) / measured:.1%} |", flush=True)


def run(hosts: Hosts, nodes: int, arguments, kind: str, model: Path, plan: Path, payload: float) -> str:
    words = [str(PROGRAMS / "rp-launch"), "--device", "sim:rtx4090", "--workers", "2", "--network", f"{payload:g}gbit", "--plan", str(plan),
             "train", "--model", str(model), "--max-grad-norm", "0", "--sequence-length", "2048", "--batch-size",
             str(arguments.batch_size // 2 * nodes), "--num-microbatches", str(arguments.num_microbatches), "--rounds-per-step", str(nodes),
             "--max-steps", str(arguments.steps), *(["--async"] if kind == "asynchronous" else [])]
    command = hosts.mpirun_each({name: words for name in hosts.names}) if nodes > 1 else hosts.command("host0", words)
    process = subprocess.run(command, env=os.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return process.stdout + process.stderr


if __name__ == "__main__":
    main()
