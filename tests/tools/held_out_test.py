#!/usr/bin/env python3
"""Documents held out of training: the choice does not depend on the other documents, and no document is on both
sides."""

import argparse
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from example_formats import Chat, Text  # noqa: E402
from held_out import choose, parse_amount  # noqa: E402
from tool import ToolError  # noqa: E402

TEXTS = [Text(f"text {number}") for number in range(200)]


def chosen(examples, amount, seed=0):
    return {examples[index] for index in choose(examples, amount, seed)}


class HeldOutTest(unittest.TestCase):
    def test_amounts(self):
        self.assertEqual([parse_amount(text) for text in ("0.05", "5%", "200")], [0.05, 0.05, 200])
        self.assertIsInstance(parse_amount("1"), int)
        for text in ("0", "-1", "1.5", "100%", "nan", "inf", "x", ""):
            with self.subTest(text), self.assertRaises(argparse.ArgumentTypeError):
                parse_amount(text)

    def test_shares_and_numbers(self):
        self.assertEqual([len(choose(TEXTS, amount, 0)) for amount in (0.05, 7, 0.0001)], [10, 7, 1])

    def test_the_choice_depends_on_the_content_and_the_seed_and_not_on_the_order(self):
        self.assertEqual(chosen(TEXTS, 20), chosen(TEXTS[::-1], 20))
        self.assertNotEqual(chosen(TEXTS, 20), chosen(TEXTS, 20, seed=1))
        grown = TEXTS + [Text(f"more {number}") for number in range(20)]
        self.assertGreaterEqual(len(chosen(TEXTS, 0.1) & chosen(grown, 0.1)), 15, "data that is added changes it little")

    def test_equal_documents_are_on_one_side(self):
        chats = [Chat([{"role": "user", "content": str(number % 10)}], [0]) for number in range(100)]
        held = choose(chats, 1, 0)
        self.assertEqual(len(held), 10)
        self.assertEqual({index % 10 for index in held}, {min(held)})

    def test_something_is_left_to_train(self):
        for examples, amount in ((TEXTS, 200), (TEXTS, 300), (TEXTS[:1], 0.5), ([Text("a")] * 5, 1)):
            with self.subTest(amount), self.assertRaisesRegex(ToolError, "nothing would be left to train"):
                choose(examples, amount, 0)


if __name__ == "__main__":
    unittest.main()
