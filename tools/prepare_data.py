#!/usr/bin/env python3
"""Tokenizes text or chat for `train --data`: tokens, and a mask of the tokens that are trained.

Input: a .txt file (one document), or a .jsonl file with one object a line, {"text": "..."} or
{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}, the same kind in every line.
Of text every token is trained, of chat the assistant's turns and the token that ends them.
The format of the output: docs/formats/tokens.md."""

import argparse
import json
import os
import sys
from pathlib import Path

from token_file import TokenFileWriter
from tool import BAD_INPUT, USAGE, ToolError, partial_path, run_tool

ROLES = ("system", "user", "assistant", "tool")


def load_tokenizer(directory: Path):
    if not directory.is_dir():
        raise ToolError(BAD_INPUT, f"{directory}: is not a directory (with tokenizer.json)")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except Exception as error:  # the library raises many kinds
        raise ToolError(BAD_INPUT, f"{directory}: no tokenizer can be loaded from it: {str(error).splitlines()[0]}") from error
    if not tokenizer.is_fast:
        raise ToolError(BAD_INPUT, f"{directory}: has no tokenizer.json")
    tokenizer.model_max_length = sys.maxsize  # cutting is the reader's business
    return tokenizer


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ToolError(BAD_INPUT, f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ToolError(BAD_INPUT, f"{path}: is not UTF-8 at byte {error.start}") from error


def refuse_twice(pairs: list) -> dict:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is there twice")
    return members


class Examples:
    """The examples of an input file: (place for messages, text or list of messages), all of one kind."""

    def __init__(self, path: Path):
        self.path = path
        if path.suffix == ".txt":
            self.kind, self.items = "text", [(str(path), read_text(path))]
        elif path.suffix == ".jsonl":
            self.kind, self.items = None, []
            # Not splitlines(): JSON strings may hold U+2028 and its like.
            for number, line in enumerate(read_text(path).split("\n"), 1):
                if line.strip():
                    self.items.append(self.parse(f"{path}: line {number}", line))
        else:
            raise ToolError(USAGE, f"{path}: must end in .txt or .jsonl")
        if not any(content for _, content in self.items):
            raise ToolError(BAD_INPUT, f"{path}: is empty")

    def parse(self, place: str, line: str):
        try:
            example = json.loads(line, object_pairs_hook=refuse_twice)
        except (ValueError, RecursionError) as error:
            raise ToolError(BAD_INPUT, f"{place}: is not valid JSON: {error}") from error
        if not isinstance(example, dict) or ("text" in example) == ("messages" in example):
            raise ToolError(BAD_INPUT, f'{place}: must be an object with "text" or with "messages"')
        kind = "text" if "text" in example else "chat"
        if self.kind not in (None, kind):
            raise ToolError(BAD_INPUT, f"{place}: is {kind}, but the lines before are {self.kind}; one file holds one kind")
        self.kind = kind
        if kind == "chat":
            return place, check_messages(place, example["messages"])
        check_string(place, "text", example["text"])
        return place, example["text"]


def check_string(place: str, name: str, value) -> None:
    if not isinstance(value, str):
        raise ToolError(BAD_INPUT, f"{place}: {name} is not a string")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise ToolError(BAD_INPUT, f"{place}: {name} has half of a surrogate pair, which is no character")


def check_messages(place: str, messages) -> list[dict]:
    if not isinstance(messages, list) or not messages:
        raise ToolError(BAD_INPUT, f"{place}: messages is not a list with entries")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise ToolError(BAD_INPUT, f"{place}: message {number} is not an object")
        for key in ("role", "content"):
            if key not in message:
                raise ToolError(BAD_INPUT, f"{place}: message {number} has no {key}")
            check_string(place, f"{key} of message {number}", message[key])
        if message["role"] not in ROLES:
            raise ToolError(BAD_INPUT, f"{place}: message {number} has the role {message['role'][:40]!r}; known are {', '.join(ROLES)}")
    if not any(message["role"] == "assistant" for message in messages):
        raise ToolError(BAD_INPUT, f"{place}: has no message of the assistant, so nothing to train")
    return messages


def trained_spans(tokenizer, place: str, messages: list[dict]) -> tuple[str, list[tuple[int, int]]]:
    """The rendered chat, and the ranges of its characters that the assistant's turns added.

    A turn's range is what its rendering adds to the rendering of the messages before it with the generation prompt: what
    the model itself will have to write. White space after the end-of-turn token is the template's."""
    from jinja2 import TemplateError

    def render(count: int, prompt: bool) -> str:
        try:
            return tokenizer.apply_chat_template(messages[:count], tokenize=False, add_generation_prompt=prompt)
        except (TemplateError, TypeError, ValueError) as error:
            raise ToolError(BAD_INPUT, f"{place}: the chat template refuses it: {str(error).splitlines()[0]}") from error

    whole = render(len(messages), False)
    spans = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = render(index, True), render(index + 1, False)
        if not after.startswith(before) or not whole.startswith(after.rstrip()):
            raise ToolError(BAD_INPUT, f"{place}: the chat template renders message {index + 1} differently as part of a "
                                       "longer chat; give each assistant turn a line of its own")
        spans.append((len(before), len(after.rstrip())))
    return whole, spans


def disable_post_processing(tokenizer) -> None:
    """For chat: the template writes the special tokens, and some post-processors take white space out of the offsets."""
    from tokenizers import processors

    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])


def tokenize_chat(tokenizer, place: str, messages: list[dict]) -> tuple[list[int], list[int]]:
    whole, spans = trained_spans(tokenizer, place, messages)
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    mask = [0] * len(encoded["input_ids"])
    span = 0
    for index, (begin, end) in enumerate(encoded["offset_mapping"]):
        while span < len(spans) and begin >= spans[span][1]:
            span += 1
        # A token across the border with the prompt is context: the model will be given its beginning.
        if span < len(spans) and spans[span][0] <= begin < end:
            mask[index] = 1
    return encoded["input_ids"], mask


def tokenize_text(tokenizer, text: str) -> tuple[list[int], list[int]]:
    if not text:
        return [], []
    tokens = tokenizer(text)["input_ids"]
    if tokenizer.eos_token_id is not None and tokens[-1:] != [tokenizer.eos_token_id]:
        tokens = tokens + [tokenizer.eos_token_id]
    return tokens, [1] * len(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="a Hugging Face model directory")
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help=".txt or .jsonl")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the token file to write")
    arguments = parser.parse_args()
    examples = Examples(arguments.input)  # before the tokenizer, which takes seconds to load
    tokenizer = load_tokenizer(arguments.tokenizer)
    if examples.kind == "chat":
        if not tokenizer.chat_template:
            raise ToolError(BAD_INPUT, f"{arguments.tokenizer}: has no chat template, so messages cannot be rendered")
        disable_post_processing(tokenizer)
    writer = TokenFileWriter(len(tokenizer), tokenizer.eos_token_id, examples.kind)
    for place, content in examples.items:
        if examples.kind == "chat":
            writer.add(*tokenize_chat(tokenizer, place, content))
        else:
            writer.add(*tokenize_text(tokenizer, content))
    if writer.num_trained == 0:
        raise ToolError(BAD_INPUT, f"{arguments.input}: has no tokens to train")
    with partial_path(arguments.output) as partial:
        writer.write(partial)
    print(f"{arguments.output}: {writer.num_documents} documents, {len(writer.tokens)} tokens, {writer.num_trained} trained, "
          f"longest {writer.longest}")


if __name__ == "__main__":
    run_tool(main)
