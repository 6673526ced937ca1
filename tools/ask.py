#!/usr/bin/env python3
"""Asks a chat model in a Hugging Face directory one question, on the CPU, and prints the answer (the most likely token
each time, so the same question gives the same answer)."""

import argparse
import os
from pathlib import Path

from tool import BAD_INPUT, ToolError, run_tool, verify_checksums


def answer(directory: Path, question: str, max_tokens: int) -> str:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
        model = AutoModelForCausalLM.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise ToolError(BAD_INPUT, f"{directory}: is no model that transformers loads: {error}") from error
    if tokenizer.chat_template is None:
        raise ToolError(BAD_INPUT, f"{directory}: its tokenizer has no chat template")
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face directory with a tokenizer")
    parser.add_argument("--question", required=True, metavar="TEXT")
    parser.add_argument("--max-tokens", type=int, default=80, metavar="N", help="tokens of the answer (default: %(default)s)")
    arguments = parser.parse_args()
    if not arguments.model.is_dir():
        raise ToolError(BAD_INPUT, f"{arguments.model}: there is no such directory")
    verify_checksums(arguments.model)
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(answer(arguments.model, arguments.question, arguments.max_tokens))


if __name__ == "__main__":
    run_tool(main)
