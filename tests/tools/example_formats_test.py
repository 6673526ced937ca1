#!/usr/bin/env python3
"""Rows of data: their format is recognised by their keys, and a row of no format is refused with the name of the
nearest format."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from example_formats import FORMATS, Chat, Completion, Instruction, Text, make_example  # noqa: E402
from tool import BAD_INPUT, ToolError  # noqa: E402

ASK, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


class ExampleFormatsTest(unittest.TestCase):
    def make(self, row, wanted=None):
        return make_example("f: line 1", row, wanted)[0]

    def refused(self, row, *parts: str, wanted=None):
        with self.assertRaises(ToolError) as raised:
            make_example("f: line 1", row, wanted)
        self.assertEqual(raised.exception.code, BAD_INPUT)
        for part in ("f: line 1: ", *parts):
            self.assertIn(part, str(raised.exception))

    def test_keys_say_the_format(self):
        chat = Chat([ASK, ANSWER], [1])
        self.assertEqual(self.make({"text": "x"}), Text("x"))
        self.assertEqual(self.make({"messages": [ASK, ANSWER]}), chat)
        self.assertEqual(self.make({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}), chat)
        self.assertEqual(self.make({"conversations": [ASK, ANSWER]}), chat)
        self.assertEqual(self.make({"instruction": "i", "output": "o"}), Instruction("i", "", "o", "", []))
        self.assertEqual(self.make({"instruction": "i", "input": None, "output": "o"}), Instruction("i", "", "o", "", []))
        self.assertEqual(self.make({"prompt": "p", "completion": "c"}), Completion("p", "c"))

    def test_names_of_roles_in_sharegpt(self):
        turns = [("system", "system"), ("human", "user"), ("observation", "tool"), ("chatgpt", "assistant")]
        chat = self.make({"conversations": [{"from": name, "value": "v"} for name, _ in turns]})
        self.assertEqual([message["role"] for message in chat.messages], [role for _, role in turns])
        chat = self.make({"system": "S", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})
        self.assertEqual(chat, Chat([{"role": "system", "content": "S"}, ASK, ANSWER], [2]))
        self.refused({"system": "S", "conversations": [{"from": "system", "value": "s"}, {"from": "gpt", "value": "a"}]}, "one of the two")
        self.refused({"conversations": [{"from": "bard", "value": "v"}]}, "message 1 has the role 'bard'", "human", "gpt")
        self.refused({"conversations": [{"from": "human", "content": "v"}]}, "message 1 has no role")
        self.refused({"conversations": [{"from": "human"}]}, "message 1 has no value")

    def test_an_instruction_becomes_a_chat_with_its_history(self):
        row = {"instruction": "i", "input": "n", "output": "o", "system": "S", "history": [["q", "a"]]}
        chat = self.make(row).chat()
        self.assertEqual(chat.messages, [{"role": "system", "content": "S"}, ASK, ANSWER, {"role": "user", "content": "i\n\nn"},
                                         {"role": "assistant", "content": "o"}])
        self.assertEqual(chat.trained, [2, 4])
        with self.assertRaisesRegex(ToolError, "f: line 1: has a history"):
            self.make(row).completion("f: line 1")
        self.refused(row | {"history": ["q"]}, "history is not a list of pairs")
        self.refused(row | {"output": None}, "output is not a string")

    def test_of_a_completion_of_messages_only_its_own_assistants_are_trained(self):
        chat = self.make({"prompt": [ASK, ANSWER, ASK], "completion": [ANSWER]})
        self.assertEqual((len(chat.messages), chat.trained), (4, [3]))
        self.refused({"prompt": [ASK, ANSWER], "completion": [ASK]}, "no message of the assistant in its completion")
        self.refused({"prompt": [ASK], "completion": "a"}, "is a list of messages and the other is not")

    def test_weights_of_messages_are_heeded(self):
        self.assertEqual(self.make({"messages": [ASK, ANSWER | {"weight": 0}, ASK, ANSWER | {"weight": 1}]}).trained, [3])
        self.assertEqual(self.make({"messages": [ASK, ANSWER | {"train": False}, ASK, ANSWER]}).trained, [3])
        self.refused({"messages": [ASK, ANSWER | {"weight": 0.5}]}, "message 2 has the weight 0.5; 0 and 1 are known")
        self.refused({"messages": [ASK | {"train": True}, ANSWER]}, "message 1 of the user is to be trained")

    def test_the_nearest_format_is_named(self):
        for keys, name, missing in (
                (("question", "answer"), "prompt-completion", '"prompt" and "completion"'),
                (("instruction", "context", "response"), "alpaca", '"output"'),
                (("intruction", "input", "output"), "alpaca", '"instruction"'),
                (("dialogue",), "sharegpt", '"conversations"'),
                (("Messages",), "messages", '"messages"'),
                (("content",), "text", '"text"'),
                (("prompt", "compeltion"), "prompt-completion", '"completion"')):
            with self.subTest(keys):
                self.refused(dict.fromkeys(keys, "x"), f"the nearest is {name}, ", f"it lacks {missing}", repr(keys[0]))
        self.refused({"zzz": 1}, "no known format; known are", *FORMATS)
        self.refused({"context": "x"}, "no known format; known are")
        self.refused({}, "it has none", "no known format")

    def test_what_fits_two_formats_needs_a_choice(self):
        row = {"instruction": "i", "input": "", "output": "o", "text": "t"}
        self.refused(row, "fit the formats text and alpaca; say which with --format")
        self.assertEqual(self.make(row, "text"), Text("t"))
        self.assertEqual(self.make(row, "alpaca"), Instruction("i", "", "o", "", []))
        self.refused(row, "is not in the format messages", 'it lacks "messages"', wanted="messages")

    def test_preferences_are_refused_rather_than_learned(self):
        self.refused({"prompt": "p", "chosen": "a", "rejected": "b"}, "data of preferences")
        self.refused({"prompt": "p", "completion": "c", "label": False}, "data of preferences")
        self.assertEqual(self.make({"prompt": "p", "completion": "c", "label": "positive"}), Completion("p", "c"))

    def test_keys_that_are_not_used_are_reported(self):
        self.assertEqual(make_example("f", {"text": "x", "id": 1, "url": ""}, None)[1], ["id", "url"])
        self.assertEqual(make_example("f", {"instruction": "i", "input": "", "output": "o", "history": []}, None)[1], [])


if __name__ == "__main__":
    unittest.main()
