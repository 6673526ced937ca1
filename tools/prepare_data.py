#!/usr/bin/env python3
"""Tokenizes text, chats and other examples for `train --data`: tokens, and a mask of the tokens that are trained.

Input: files that end in .txt (one document), .jsonl (one object a line) or .json (an array of objects), or
in one of these and .gz. The keys of an object determine its format:
  text               {"text": "..."}
  messages           {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
  sharegpt           {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
  alpaca             {"instruction": "...", "input": "...", "output": "..."}
  prompt-completion  {"prompt": "...", "completion": "..."}, both strings or both lists of messages
These tokens are trained: all tokens of text; in a chat, the assistant's turns and the tokens that end them; after a
prompt, the completion and the end-of-text token. Alpaca's objects become chats if the tokenizer has a chat template.
A token file contains either text or examples (all other formats), not both.
The format of the output: docs/formats/tokens.md."""

import argparse
import contextlib
from collections import Counter
from pathlib import Path

from chat_mask import ExampleTokenizer
from example_files import read_rows
from example_formats import FORMATS, Completion, Example, Instruction, Text, make_example
from held_out import choose, parse_amount
from shown_documents import marks_for_stdout, show
from token_file import TokenFileWriter
from tokenizer_folder import check_tokenizer_files, load_tokenizer, tokenizer_identity
from tool import BAD_INPUT, ToolError, partial_path, run_tool, tell

FEW_TRAINED = 0.01  # a warning is printed if a smaller share of the tokens is trained


class Examples:
    """The examples of all input files with their locations. Either all of them are text or none is. Empty texts are left out."""

    def __init__(self, paths: list[Path], wanted: str | None):
        self.places: list[str] = []
        self.items: list[Example] = []
        self._unused: Counter[str] = Counter()
        first = None  # the first example's location and whether it is text; it may be an empty text
        for path in paths:
            for place, row in read_rows(path):
                example, unused = make_example(place, row, wanted)
                self._unused.update(unused)
                is_text = isinstance(example, Text)
                first = first or (place, is_text)
                if is_text != first[1]:
                    kinds = ("text", "an example") if is_text else ("an example", "text")
                    raise ToolError(BAD_INPUT, f"{place}: is {kinds[0]}, but {first[0]} is {kinds[1]}; long texts are cut into pieces and examples "
                                               "are not, so a token file contains only one kind: prepare them separately")
                if not (is_text and not example.text):
                    self.places.append(place)
                    self.items.append(example)
        if not self.items:
            raise ToolError(BAD_INPUT, f"{_names(paths)}: has nothing but empty texts")

    @property
    def are_text(self) -> bool:
        return isinstance(self.items[0], Text)

    def tell_unused(self) -> None:
        if self._unused:
            keys = ", ".join(f"{key!r} ({count})" for key, count in self._unused.most_common(8))
            more = f" and {len(self._unused) - 8} more" if len(self._unused) > 8 else ""
            tell(f"note: keys that were not used, and in how many objects: {keys}{more}")


class Part:
    """The documents of one token file, with their locations."""

    def __init__(self, output: Path | None, writer: TokenFileWriter):
        self.output = output
        self.writer = writer
        self.places: list[str] = []

    def add(self, place: str, tokens: list[int], mask: list[int]) -> None:
        if tokens:
            self.writer.add(tokens, mask)
            self.places.append(place)

    def tell_few_trained(self) -> None:
        writer, untrained = self.writer, self.writer.documents_without_labels()
        if untrained:
            tell(f"warning: {len(untrained)} of {writer.num_documents} documents have no token to train, and `train` leaves them out; "
                 f"the first is {self.places[untrained[0]]}")
        if writer.num_trained < FEW_TRAINED * len(writer.tokens):
            tell(f"warning: only {writer.num_trained} of {len(writer.tokens)} tokens are trained ({_percent(writer)}); check the data: "
                 "--show prints documents and marks their trained tokens")

    def summary(self) -> str:
        """Returns one line, which also helps to choose --sequence-length."""
        writer, lengths = self.writer, self.writer.lengths()
        line = (f"{self.output or 'nothing written'}: {writer.num_documents} documents, {len(writer.tokens)} tokens, {writer.num_trained} trained, "
                f"longest {writer.longest} ({_percent(writer)} trained")
        if len(lengths) > 1:
            line += f"; median {lengths[(len(lengths) - 1) // 2]}, 95 % at most {lengths[-(-95 * len(lengths) // 100) - 1]}"
            longer = [(size, sum(length > size for length in lengths)) for size in (2**power for power in range(6, 24))]
            line += "".join(f"; {count} longer than {size}" for size, count in [entry for entry in longer if 0 < entry[1] < len(lengths)][-4:])
        return line + ")"


def _names(paths: list[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def _percent(writer: TokenFileWriter) -> str:
    return f"{100 * writer.num_trained / len(writer.tokens):.3g} %"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="the Hugging Face directory of the model that will be trained")
    parser.add_argument("--input", type=Path, required=True, nargs="+", action="extend", metavar="FILE", help="one or more files")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the token file to write; optional with --show, which then writes no file")
    parser.add_argument("--format", choices=FORMATS, help="the format of all objects (default: determined for each object by its keys)")
    parser.add_argument("--show", type=int, nargs="?", const=3, default=0, metavar="N",
                        help="print the first N documents (3) after writing: trained tokens in green, the others dim; if there is no terminal "
                             "or NO_COLOR is set, trained tokens are between [[ and ]]. Control characters are escaped, and long parts are shortened")
    parser.add_argument("--held-out", type=parse_amount, metavar="X", help="hold out this share (0.05 or 5%%) or number of documents, for evaluation")
    parser.add_argument("--held-out-output", type=Path, metavar="FILE", help="the token file for the documents that are held out")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="each seed holds out different documents (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.output is None and not arguments.show:
        parser.error("one of --output and --show is needed")
    if arguments.show < 0:
        parser.error(f"--show {arguments.show}: is not a number of documents")
    if (arguments.held_out is None) != (arguments.held_out_output is None) or (arguments.held_out and arguments.output is None):
        parser.error("--held-out, --held-out-output and --output go together")
    paths = [*arguments.input, *filter(None, (arguments.output, arguments.held_out_output))]
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            parser.error(f"{path}: is given {count} times; inputs and outputs must be different files")
    return arguments


def tokenize(examples: Examples, tokenizer, parts: list[Part], held_out: set[int]) -> None:
    """Adds the tokenized examples to parts[0], or to parts[1] if they are held out."""
    example_tokenizer = ExampleTokenizer(tokenizer, examples.are_text)
    for index, (place, example) in enumerate(zip(examples.places, examples.items)):
        parts[index in held_out].add(place, *example_tokenizer.tokenize(place, example))
    if example_tokenizer.num_apart:
        tell(f"note: {example_tokenizer.num_apart} prompts end inside a token that crosses into the completion (often with a space), so prompt and "
             f"completion were tokenized separately; the first is {example_tokenizer.first_apart}")
    without_template = not tokenizer.chat_template and any(isinstance(example, Instruction) for example in examples.items)
    if without_template:
        tell("note: the tokenizer has no chat template; instructions were put into the prompt of Alpaca")
    if tokenizer.eos_token_id is None and (without_template or any(isinstance(example, Completion) for example in examples.items)):
        tell("warning: the tokenizer has no end-of-text token, so the model does not learn where a completion ends")


def main() -> None:
    arguments = parse_arguments()
    check_tokenizer_files(arguments.tokenizer)
    examples = Examples(arguments.input, arguments.format)  # before the tokenizer, which takes seconds to load
    held_out = choose(examples.items, arguments.held_out, arguments.seed) if arguments.held_out else set()
    tokenizer = load_tokenizer(arguments.tokenizer)
    identity = tokenizer_identity(arguments.tokenizer)
    outputs = [arguments.output] + [arguments.held_out_output] * bool(held_out)
    parts = [Part(output, TokenFileWriter(len(tokenizer), tokenizer.eos_token_id, "text" if examples.are_text else "chat", identity))
             for output in outputs]
    tokenize(examples, tokenizer, parts, held_out)
    for part in parts:
        if part.writer.num_trained == 0:
            raise ToolError(BAD_INPUT, f"{_names(arguments.input)}: has no tokens to train" + (f" for {part.output}" if held_out else ""))
    with contextlib.ExitStack() as stack:
        for part in filter(lambda part: part.output, parts):
            part.writer.write(stack.enter_context(partial_path(part.output)))
    if arguments.show:
        show(tokenizer, parts[0].writer, parts[0].places, arguments.show, marks_for_stdout())
    examples.tell_unused()
    for part in parts:
        part.tell_few_trained()
        print(part.summary())


if __name__ == "__main__":
    run_tool(main)
