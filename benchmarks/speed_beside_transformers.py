#!/usr/bin/env python3
"""Training speed beside transformers, in one run: tokens/s of both and their ratio.

transformers: bf16 weights, gradient checkpointing, default attention, the whole batch in one forward, fused bf16
torch.optim.AdamW timed with the step, THREADS threads. Ours: `train` with the same batch, as 1 worker on THREADS threads
and as THREADS workers on 1 thread each. Each figure is the median of steps 2-5; the runs take turns, so that a machine
whose speed drifts is fair to all.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


def run_transformers(arguments):
    """Runs in a process of its own, so that its memory and threads are gone afterwards."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(5):
        ids = torch.randint(0, model.config.vocab_size, (arguments.batch_size, arguments.sequence_length),
                            generator=generator)
        start = time.perf_counter()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    print(statistics.median(seconds[1:]))


def measure_transformers(arguments):
    command = [sys.executable, __file__, *sys.argv[1:], "--transformers-only"]
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads), HF_HUB_OFFLINE="1")
    result = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(result.stdout.split()[-1])


def measure_ours(arguments, data, workers, threads, extra=()):
    with tempfile.TemporaryDirectory() as scratch:
        output = pathlib.Path(scratch) / "out"
        command = [f"{arguments.bin}/rp-launch", "--workers", str(workers), "--threads-per-worker", str(threads), "train",
                   "--model", arguments.model, "--data", str(data), "--output", str(output), "--max-steps", "5",
                   "--batch-size", str(arguments.batch_size), "--num-microbatches", str(arguments.num_microbatches),
                   "--sequence-length", str(arguments.sequence_length), "--learning-rate", "1e-5", "--seed", "1",
                   "--dtype", "bf16", *extra]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}")
        steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(step["seconds"] for step in steps[1:5])


def make_data(arguments, scratch):
    """A text without padding: every token of every row is trained, as in transformers' run."""
    text = pathlib.Path(scratch) / "text.jsonl"
    import random
    random.seed(0)
    words = "the quick brown fox jumps over a lazy dog while seven wizards hack on quiet kernels".split()
    rows = 6 * arguments.batch_size
    with open(text, "w") as file:
        for _ in range(rows):
            file.write(json.dumps({"text": " ".join(random.choices(words, k=2 * arguments.sequence_length))}) + "\n")
    data = pathlib.Path(scratch) / "data.tokens"
    tool = pathlib.Path(__file__).resolve().parent.parent / "tools" / "prepare_data.py"
    subprocess.run([sys.executable, tool, "--tokenizer", arguments.model, "--input", text, "--output", data], check=True,
                   stdout=subprocess.DEVNULL)
    return data


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--bin", default="build/release/bin", help="where rp-launch and train are")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--num-microbatches", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--transformers-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.transformers_only:
        run_transformers(arguments)
        return
    tokens = arguments.batch_size * arguments.sequence_length
    runs = {"transformers": []}
    ours = {f"1 worker x {arguments.threads} threads": (1, arguments.threads),
            f"{arguments.threads} workers x 1 thread": (arguments.threads, 1)}
    runs.update({name: [] for name in ours})
    with tempfile.TemporaryDirectory() as scratch:
        data = make_data(arguments, scratch)
        for _ in range(arguments.rounds):
            runs["transformers"].append(measure_transformers(arguments))
            for name, (workers, threads) in ours.items():
                runs[name].append(measure_ours(arguments, data, workers, threads))
    print(f"{arguments.batch_size} x {arguments.sequence_length} tokens a step, {arguments.threads} threads, "
          f"median of steps 2-5 in each of {arguments.rounds} runs")
    for name, seconds in runs.items():
        ratios = [reference / mine for reference, mine in zip(runs["transformers"], seconds)]
        print(f"{name:24} {tokens / statistics.median(seconds):8.1f} tokens/s   ratio to transformers "
              f"{statistics.median(ratios):.3f} (runs {', '.join(f'{ratio:.3f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
