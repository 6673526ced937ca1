#!/usr/bin/env python3
"""Asks a chat model in a Hugging Face directory one question, on the CPU, and prints the answer (the most likely token
each time, so the same question gives the same answer)."""

import argparse
import os
from pathlib import Path

from tokenizer_folder import check_model_folder, check_tokenizer_files, first_line
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
    except Exception as error:  # the libraries raise many kinds
        raise ToolError(BAD_INPUT, f"{directory}: is no model that transformers loads: {first_line(error)}") from error
    if tokenizer.chat_template is None:
        raise ToolError(BAD_INPUT, f"{directory}: its tokenizer has no chat template, so it cannot be asked as a chat model; if the model is one, "
                                   "copy chat_template.jinja from where it came from")
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True).strip()


def check_is_model(directory: Path) -> None:
    check_model_folder(directory)
    if not (directory / "config.json").exists():
        adapter = (directory / "adapter_config.json").exists()
        raise ToolError(BAD_INPUT, f"{directory}: " + (
            "is a LoRA adapter without its model; train with --save-merged, which writes the whole model into OUTPUT/merged, and ask that"
            if adapter else "has no config.json, so it is no model"))
    if not any(directory.glob("*.safetensors")) and not any(directory.glob("pytorch_model*.bin")):
        raise ToolError(BAD_INPUT, f"{directory}: has no weights (looked for *.safetensors and pytorch_model*.bin)")
    check_tokenizer_files(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face directory with a tokenizer")
    parser.add_argument("--question", required=True, metavar="TEXT")
    parser.add_argument("--max-tokens", type=int, default=80, metavar="N", help="tokens of the answer (default: %(default)s)")
    arguments = parser.parse_args()
    check_is_model(arguments.model)
    verify_checksums(arguments.model)
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(answer(arguments.model, arguments.question, arguments.max_tokens))


if __name__ == "__main__":
    run_tool(main)
