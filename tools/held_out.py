"""Chooses the documents that are held out of training, for evaluation."""

import argparse
import dataclasses
import hashlib
import json

from example_formats import Example
from tool import BAD_INPUT, ToolError


def parse_amount(text: str) -> int | float:
    """Returns a share (0.05 or 5%) as float, or a number of documents as int."""
    try:
        amount = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        if 0 < amount < 1:
            return amount
        if amount >= 1 and not text.endswith("%"):
            return int(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is neither a share below 1, such as 0.05 or 5%, nor a number of documents")


def choose(examples: list[Example], amount: int | float, seed: int) -> set[int]:
    """Returns the indices of the examples that are held out: those with the smallest hashes of seed
    and content, at least one.

    An example's hash depends on nothing else. So the choice is the same for every tokenizer and
    order of files, changes little when data are added, and never puts equal examples on both sides.
    The last group of equal examples may exceed the amount."""
    hashes = [hashlib.sha256(f"{seed}\n{json.dumps(dataclasses.asdict(example))}".encode()).digest() for example in examples]
    order = sorted(range(len(examples)), key=hashes.__getitem__)
    count = max(1, round(amount * len(examples))) if isinstance(amount, float) else amount
    while 0 < count < len(order) and hashes[order[count]] == hashes[order[count - 1]]:
        count += 1
    if count >= len(order):
        raise ToolError(BAD_INPUT, f"--held-out {amount}: nothing would be left to train of {len(order)} document"
                                   f"{'s, equal ones together' if len(order) > 1 else ', and documents are kept whole'}")
    return set(order[:count])
