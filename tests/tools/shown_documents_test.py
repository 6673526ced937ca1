#!/usr/bin/env python3
"""The output of --show: every character once, marked by its mask, and no control sequences for the terminal."""

import os
import pty
import sys
import unittest
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
from shown_documents import BRACKETS, COLOURS, MAX_RUNS, marks_for_stdout, render  # noqa: E402


class SpacedTokenizer:
    """A decoder that removes the first space of a text, as those of Llama 2 do."""

    def decode(self, tokens, **options):
        return "".join(f" {token}" for token in tokens)[1:]


class LetterTokenizer:
    def decode(self, tokens, **options):
        return "".join(map(chr, tokens))


def letters(text: str) -> list[int]:
    return list(map(ord, text))


class ShownDocumentsTest(unittest.TestCase):
    def test_runs_are_marked(self):
        self.assertEqual(render(LetterTokenizer(), letters("abcd"), [0, 1, 1, 0], BRACKETS), "a[[bc]]d")
        self.assertEqual(render(LetterTokenizer(), letters("abc"), [1, 0, 1], COLOURS), "\x1b[1;32ma\x1b[0m\x1b[2mb\x1b[0m\x1b[1;32mc\x1b[0m")

    def test_spaces_between_runs_are_kept(self):
        self.assertEqual(render(SpacedTokenizer(), [1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 1, 1, 1, 0], BRACKETS), "1 2[[ 3 4 5 6]] 7")

    def test_control_characters_are_escaped(self):
        self.assertEqual(render(LetterTokenizer(), letters("\x1b]0;x\x07\r\t\x9b\u202e\u2028\u200d\n"), [1] * 13, BRACKETS),
                         "[[\\x1b]0;x\\x07\\r\\t\\x9b\\u202e\\u2028\u200d\n]]")

    def test_long_runs_and_many_runs_are_shortened(self):
        text = render(LetterTokenizer(), letters("a" * 300 + "b" * 500 + "c" * 100 + "!"), [0] * 900 + [1], BRACKETS)
        self.assertEqual(text, "a" * 300 + " ... 500 tokens ... " + "c" * 100 + "[[!]]")
        text = render(LetterTokenizer(), letters("xy" * 100), [0, 1] * 100, BRACKETS)
        self.assertEqual(text, "x[[y]]" * (MAX_RUNS // 2) + f" ... {200 - MAX_RUNS} more tokens")

    def test_colours_are_for_terminals_without_no_color(self):
        ours, theirs = pty.openpty()
        with os.fdopen(theirs, "w") as terminal, os.fdopen(ours), open(os.devnull, "w") as file:
            for stream, environment, marks in ((terminal, {}, COLOURS), (terminal, {"NO_COLOR": ""}, COLOURS), (terminal, {"NO_COLOR": "1"}, BRACKETS),
                                               (terminal, {"TERM": "dumb"}, BRACKETS), (file, {}, BRACKETS)):
                with self.subTest(environment), mock.patch.object(sys, "stdout", stream), mock.patch.dict(os.environ, {"TERM": "xterm"} | environment):
                    if "NO_COLOR" not in environment:
                        os.environ.pop("NO_COLOR", None)
                    self.assertIs(marks_for_stdout(), marks)


if __name__ == "__main__":
    unittest.main()
