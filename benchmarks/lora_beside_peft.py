#!/usr/bin/env python3
"""Trains LoRA on the Jargon File by `train` and by peft with torch.optim.AdamW: from the same adapter, on the same batches, with the same
learning rates.

Makes the files that it needs in PLACE: the sample model, the data, of which every twentieth entry is kept for the evaluation, and the
adapter with which both begin. Then trains both and evaluates both adapters before and after by transformers and peft, on the entries that
neither has seen. Both have bf16 weights; peft keeps its pairs in fp32, as it does by default. Exit code 1 if the loss falls less than with
peft, by more than differences of rounding can explain (--tolerance).
"""
import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
from array import array
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parent.parent
KEEP_EVERY = 20
LENGTH, BATCH, SEED, RANK, ALPHA = 128, 8, 1, 16, 32
MASK64 = 2**64 - 1


def tool(name, *words):
    subprocess.run([sys.executable, ROOT / "tools" / f"{name}.py", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def make_inputs(place):
    place.mkdir(parents=True, exist_ok=True)
    tool("fetch_sample_model", "--output", place / "model")
    tool("jargon_chat", "--output", place / "jargon.jsonl")
    lines = (place / "jargon.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, part in {"kept": lines[::KEEP_EVERY], "trained": [line for i, line in enumerate(lines) if i % KEEP_EVERY]}.items():
        (place / f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
        tool("prepare_data", "--tokenizer", place / "model", "--input", place / f"{name}.jsonl", "--output", place / f"{name}.tokens")


def read_rows(path):
    """Returns what `train` makes of each document (train/data/sequences.h): at most LENGTH tokens, and as many labels, which are the next tokens."""
    raw = path.read_bytes()
    documents, tokens = struct.unpack_from("<QQ", raw, 24)
    ends, ids, mask = array("Q"), array("I"), raw[-tokens:]
    ends.frombytes(raw[80:88 + 8 * documents])
    ids.frombytes(raw[88 + 8 * documents:-tokens])
    rows = []
    for begin, end in zip(ends, ends[1:]):
        end = min(end, begin + LENGTH + 1)
        labels = [ids[i] if mask[i] else -100 for i in range(begin + 1, end)]
        if any(label >= 0 for label in labels):
            rows.append((list(ids[begin:min(end, begin + LENGTH)]), labels))
    return rows


def shuffled(count, seed, stream):
    """Shuffles as train/data/shuffle.h does: Fisher-Yates over xoshiro256**, seeded by splitmix64."""
    def split(state):
        state = (state + 0x9E3779B97F4A7C15) & MASK64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
        return state, z ^ (z >> 31)

    def rotated(x, by):
        return ((x << by) | (x >> (64 - by))) & MASK64

    state = split(seed)[1] ^ stream
    words = []
    for _ in range(4):
        state, word = split(state)
        words.append(word)

    def below(bound):
        while True:
            number = rotated(words[1] * 5 & MASK64, 7) * 9 & MASK64
            shifted = words[1] << 17 & MASK64
            words[2] ^= words[0]
            words[3] ^= words[1]
            words[1] ^= words[2]
            words[0] ^= words[3]
            words[2] ^= shifted
            words[3] = rotated(words[3], 45)
            if (number * bound & MASK64) >= 2**64 % bound:
                return number * bound >> 64

    order = list(range(count))
    for i in range(count, 1, -1):
        j = below(i)
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


def batch_of(rows):
    import torch

    ids, labels = torch.zeros(len(rows), LENGTH, dtype=torch.long), torch.full((len(rows), LENGTH), -100)
    for i, (tokens, following) in enumerate(rows):
        ids[i, :len(tokens)] = torch.tensor(tokens)
        labels[i, :len(following)] = torch.tensor(following)
    return ids, labels


def load(place):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.bfloat16)


def with_adapter(place, adapter, is_trainable=False):
    from peft import PeftModel

    return PeftModel.from_pretrained(load(place), adapter, is_trainable=is_trainable)


def make_adapter(place):
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(SEED)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(load(place), config).save_pretrained(place / "initial")


def summed_loss(model, ids, labels):
    import torch

    logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")


def evaluate(place, adapter):
    """Returns the mean loss per token of the kept entries."""
    import torch

    model, rows = with_adapter(place, adapter).eval(), read_rows(place / "kept.tokens")
    total = trained = 0
    with torch.no_grad():
        for first in range(0, len(rows), BATCH):
            ids, labels = batch_of(rows[first:first + BATCH])
            total += summed_loss(model, ids, labels).item()
            trained += (labels >= 0).sum().item()
    return total / trained


def train_ours(arguments):
    output = arguments.place / "ours"
    shutil.rmtree(output, ignore_errors=True)
    command = [f"{arguments.bin}/rp-launch", "--workers", "2", "train", "--model", arguments.place / "model",
               "--data", arguments.place / "trained.tokens", "--adapter", arguments.place / "initial", "--output", output,
               "--max-steps", arguments.steps, "--batch-size", BATCH, "--num-microbatches", 4, "--sequence-length", LENGTH,
               "--learning-rate", "1e-3", "--warmup-steps", 10, "--lr-schedule", "cosine", "--no-packing", "--seed", SEED]
    print(" ".join(map(str, command)), flush=True)
    subprocess.run(list(map(str, command)), check=True)
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def train_peft(arguments, metrics):
    """Takes the same steps, with the learning rates of `metrics`. Returns the losses."""
    import torch

    rows = read_rows(arguments.place / "trained.tokens")
    order = shuffled(len(rows), SEED, 0)
    assert len(metrics) * BATCH <= len(order), "one epoch at most"
    model = with_adapter(arguments.place, arguments.place / "initial", is_trainable=True).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0)
    losses = []
    for step, ours in enumerate(metrics):
        ids, labels = batch_of([rows[i] for i in order[step * BATCH:(step + 1) * BATCH]])
        trained = (labels >= 0).sum().item()
        assert trained == ours["trained_tokens"], f"step {step + 1} has {trained} trained tokens, not {ours['trained_tokens']}"
        loss = summed_loss(model, ids, labels) / trained
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = ours["lr"]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 10 == 0:
            print(f"peft: step {step + 1}/{len(metrics)}, loss {losses[-1]:.4f}", flush=True)
    model.save_pretrained(arguments.place / "peft")
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, default=Path("run/lora-jargon"), help="(default: %(default)s)")
    parser.add_argument("--bin", default="build/release/bin", help="where rp-launch and train are (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="(default: %(default)s)")
    parser.add_argument("--tolerance", type=float, default=0.01, help="by which share of peft's fall of the loss ours may be smaller (default: %(default)s)")
    arguments = parser.parse_args()
    make_inputs(arguments.place)
    make_adapter(arguments.place)
    before = evaluate(arguments.place, arguments.place / "initial")
    metrics = train_ours(arguments)
    losses = train_peft(arguments, metrics)
    after = {"train": evaluate(arguments.place, arguments.place / "ours" / "final"), "peft": evaluate(arguments.place, arguments.place / "peft")}
    print(f"\n{arguments.steps} steps of {BATCH} x {LENGTH} tokens; loss of the {len(read_rows(arguments.place / 'kept.tokens'))} kept entries, "
          "and of the training's first and last ten steps")
    for name, training in {"train": [step["loss"] for step in metrics], "peft": losses}.items():
        first, last = sum(training[:10]) / 10, sum(training[-10:]) / 10
        print(f"  {name:6} kept entries {before:.4f} -> {after[name]:.4f}, falls by {before - after[name]:.4f};   "
              f"training {first:.4f} -> {last:.4f}, falls by {first - last:.4f}")
    if not before - after["train"] >= (1 - arguments.tolerance) * (before - after["peft"]):
        sys.exit("the loss falls less than with peft")


if __name__ == "__main__":
    main()
