#!/usr/bin/env python3
"""Creates the input for the tests of whole programs: a tiny random Llama (tied embedding, grouped queries) in bf16 and
in fp32, each with a tokenizer, and two small token files of text. Every call creates the same bytes.
Usage: make_tiny_model.py DIR"""

import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tools"), str(ROOT / "tests" / "tools")]

import tiny_tokenizer  # noqa: E402
from token_file import TokenFileWriter  # noqa: E402

VOCABULARY = 300
PADDING = 97  # a token that occurs in the texts, but whose embedding is not trained
WORDS = "the of a bogon emits quantum bogosity when hacker program machine fails and users know it".split()


def make_model(directory: Path, dtype_name: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=96, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, rms_norm_eps=1e-5,
        bos_token_id=None, eos_token_id=257, pad_token_id=PADDING, dtype=dtype_name)
    LlamaForCausalLM(config).to(getattr(torch, dtype_name)).save_pretrained(directory)
    tiny_tokenizer.make(directory)


def make_data(path: Path, vocabulary: int) -> None:
    """Writes documents of different lengths as ids of the tiny tokenizer (one id per character)."""
    from tokenizers import pre_tokenizers

    ids = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    choose = random.Random(11)
    file = TokenFileWriter(vocabulary=vocabulary, eos_token=257, kind="text")
    for _ in range(60):
        text = "Ġ".join(choose.choice(WORDS) for _ in range(choose.randint(2, 14)))
        tokens = [ids[character] for character in text] + [257]
        if vocabulary > VOCABULARY:
            tokens.append(vocabulary - 1)
        file.add(tokens, [1] * len(tokens))
    file.write(path)


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    make_data(directory / "data.tokens", VOCABULARY)
    make_data(directory / "other_tokenizer.tokens", 5000)
    make_model(directory / "model", "bfloat16")
    make_model(directory / "model_fp32", "float32")


if __name__ == "__main__":
    main()
