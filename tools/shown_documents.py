"""Prints documents of a token file with their mask: what `train` will see, and which tokens of it are trained."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from token_file import TokenFileWriter
from tool import printable

MAX_RUNS = 40  # printed runs of a document; a run is consecutive tokens that are all trained or all not
RUN_BEGIN, RUN_END = 300, 100  # printed tokens of a long run
KEPT = "\n\u200c\u200d"  # many scripts use the joiners within words


@dataclass(frozen=True)
class Marks:
    """The text printed before and after trained tokens, and before and after others."""
    legend: str
    trained: tuple[str, str]
    context: tuple[str, str]


COLOURS = Marks("trained tokens are green, others dim", ("\x1b[1;32m", "\x1b[0m"), ("\x1b[2m", "\x1b[0m"))
BRACKETS = Marks("trained tokens stand between [[ and ]]", ("[[", "]]"), ("", ""))


def marks_for_stdout() -> Marks:
    """Returns colours on a terminal, unless NO_COLOR is set (https://no-color.org) or the terminal has no colours."""
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return COLOURS if coloured else BRACKETS


def show(tokenizer, documents: TokenFileWriter, places: list[str], count: int, marks: Marks) -> None:
    """Prints the first `count` documents. places[i] is the location that document i comes from."""
    count = min(count, documents.num_documents)
    print(f"The first {count} of {documents.num_documents} documents; {marks.legend}")
    for index in range(count):
        tokens, mask = documents.document(index)
        print(f"--- {printable(places[index])}: {len(tokens)} tokens, {mask.count(1)} trained")
        print(render(tokenizer, tokens, mask, marks))
    print("---")


def render(tokenizer, tokens: Sequence[int], mask: Sequence[int], marks: Marks) -> str:
    parts, begin = [], 0
    for number, (trained, run) in enumerate(groupby(mask)):
        if number == MAX_RUNS:
            parts.append(f" ... {len(tokens) - begin} more tokens")
            break
        end = begin + len(list(run))
        before, after = marks.trained if trained else marks.context
        if end - begin > RUN_BEGIN + RUN_END:
            text = (_decode(tokenizer, tokens, begin, begin + RUN_BEGIN) +
                    f" ... {end - begin - RUN_BEGIN - RUN_END} tokens ... " + _decode(tokenizer, tokens, end - RUN_END, end))
        else:
            text = _decode(tokenizer, tokens, begin, end)
        parts.append(f"{before}{text}{after}")
        begin = end
    return "".join(parts)


def _decode(tokenizer, tokens: Sequence[int], begin: int, end: int) -> str:
    """Decodes some tokens. Decodes a few tokens before them too, because some decoders remove a leading space."""
    first = max(0, begin - 4)

    def text(last: int) -> str:
        return tokenizer.decode(list(tokens[first:last]), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    return printable(text(end)[len(text(begin)):] if first < begin else text(end), kept=KEPT)
