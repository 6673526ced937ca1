"""tools/prepare_data.py: which tokens are trained, and how bad input is refused."""

import json
import struct
import subprocess
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

import tiny_tokenizer

TOOLS = Path(__file__).resolve().parents[2] / "tools"
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "  yes\n"},
        {"role": "user", "content": "no"}, {"role": "assistant", "content": "é"}]


def read(path: Path) -> tuple[tuple, list[tuple[list[int], list[int]]]]:
    """The header's fields and the documents."""
    data = path.read_bytes()
    header = struct.unpack("<8sIIQQQQIIIIQQ", data[:80])
    documents, tokens = header[4], header[5]
    ends, ids = array("Q"), array("I")
    ends.frombytes(data[80:80 + 8 * (documents + 1)])
    start = 80 + 8 * (documents + 1)
    ids.frombytes(data[start:start + 4 * tokens])
    mask = data[start + 4 * tokens:]
    return header, [(list(ids[a:b]), list(mask[a:b])) for a, b in zip(ends, ends[1:])]


class PrepareData(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.path = Path(cls.directory.name)
        cls.tokenizer = cls.path / "tokenizer"
        tiny_tokenizer.make(cls.tokenizer)
        sys.path.insert(0, str(TOOLS))

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def run_tool(self, name: str, content: str | bytes, tokenizer: Path | None = None):
        source = self.path / name
        source.write_bytes(content.encode() if isinstance(content, str) else content)
        output = self.path / "out.tokens"
        output.unlink(missing_ok=True)
        result = subprocess.run([sys.executable, TOOLS / "prepare_data.py", "--tokenizer", tokenizer or self.tokenizer,
                                 "--input", source, "--output", output], capture_output=True, text=True)
        self.assertEqual(list(self.path.glob(".out.tokens*")), [])
        return result, output

    def decode(self, tokens: list[int]) -> str:
        from transformers import AutoTokenizer
        return AutoTokenizer.from_pretrained(self.tokenizer).decode(tokens)

    def test_of_a_chat_the_assistants_turns_and_their_end_are_trained_and_nothing_else(self):
        result, output = self.run_tool("chat.jsonl", json.dumps({"messages": CHAT}) + "\n\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        header, [(tokens, mask)] = read(output)
        self.assertEqual(self.decode(tokens), "<|start|>user\nhi<|end|>\n<|start|>assistant\n  yes\n<|end|>\n"
                                              "<|start|>user\nno<|end|>\n<|start|>assistant\né<|end|>\n")
        self.assertEqual(self.decode([t for t, m in zip(tokens, mask) if m]), "  yes\n<|end|>é<|end|>")
        self.assertEqual(header[3:8], (258, 1, len(tokens), sum(mask), 257))
        self.assertEqual(header[8:10] + header[11:], (257, 1, len(tokens), 0))
        self.assertIn(f"1 documents, {len(tokens)} tokens, {sum(mask)} trained, longest {len(tokens)}", result.stdout)

    def test_of_text_every_token_is_trained_and_the_end_is_added(self):
        result, output = self.run_tool("a.txt", "ab\ncd")
        self.assertEqual(result.returncode, 0, result.stderr)
        header, [(tokens, mask)] = read(output)
        self.assertEqual((self.decode(tokens), sum(mask), header[9]), ("ab\ncd<|end|>", 6, 0))
        result, output = self.run_tool("a.jsonl", '{"text":"ab"}\n{"text":""}\n{"text":"c\u2028d"}\n')
        self.assertEqual([self.decode(tokens) for tokens, _ in read(output)[1]], ["ab<|end|>", "c\u2028d<|end|>"])

    def test_bad_input_is_refused_in_one_line_with_the_line_number(self):
        good = json.dumps({"messages": CHAT})
        cases = [
            ("a.txt", "", 64, "is empty"), ("a.jsonl", "\n \n", 64, "is empty"), ("a.txt", b"ab\xff", 64, "not UTF-8 at byte 2"),
            ("a.csv", "x", 2, "must end in .txt or .jsonl"), ("a.jsonl", good + "\n{", 64, "line 2: is not valid JSON"),
            ("a.jsonl", "[" * 100000, 64, "line 1: is not valid JSON"), ("a.jsonl", "3", 64, "line 1: must be an object"),
            ("a.jsonl", '{"prompt":"x"}', 64, 'with "text" or with "messages"'), ("a.jsonl", '{"text":3}', 64, "text is not a string"),
            ("a.jsonl", '{"text":"a","text":"b"}', 64, "twice"), ("a.jsonl", '{"text":"\\ud800"}', 64, "surrogate"),
            ("a.jsonl", good + '\n{"text":"a"}', 64, "line 2: is text, but the lines before are chat"),
            ("a.jsonl", '{"messages":[]}', 64, "line 1: messages"), ("a.jsonl", '{"messages":["x"]}', 64, "message 1 is not an object"),
            ("a.jsonl", '{"messages":[{"role":"user"}]}', 64, "message 1 has no content"),
            ("a.jsonl", '{"messages":[{"content":"x"}]}', 64, "message 1 has no role"),
            ("a.jsonl", '{"messages":[{"role":"bot","content":"x"}]}', 64, "the role 'bot'"),
            ("a.jsonl", '{"messages":[{"role":"user","content":"x"}]}', 64, "no message of the assistant"),
        ]
        for name, content, code, part in cases:
            with self.subTest(part):
                result, output = self.run_tool(name, content)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn(part, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                self.assertFalse(output.exists())

    def test_a_template_that_rewrites_earlier_turns_is_refused_rather_than_masked_wrongly(self):
        forgetful = self.path / "forgetful"
        tiny_tokenizer.make(forgetful, tiny_tokenizer.FORGETFUL_TEMPLATE)
        result, _ = self.run_tool("a.jsonl", json.dumps({"messages": CHAT[:2]}), forgetful)
        self.assertEqual(result.returncode, 0, result.stderr)
        result, _ = self.run_tool("a.jsonl", json.dumps({"messages": CHAT}), forgetful)
        self.assertEqual(result.returncode, 64)
        self.assertIn("line 1: the chat template renders message 2 differently", result.stderr)

    def test_what_is_no_tokenizer_for_it_is_refused(self):
        result, _ = self.run_tool("a.txt", "ab", self.path / "absent")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (64, 1), result.stderr)
        result, _ = self.run_tool("a.txt", "ab", TOOLS)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (64, 1), result.stderr)
        plain = self.path / "plain"
        tiny_tokenizer.make(plain, None)
        result, _ = self.run_tool("a.jsonl", json.dumps({"messages": CHAT}), plain)
        self.assertEqual(result.returncode, 64)
        self.assertIn("no chat template", result.stderr)

    def test_an_output_that_cannot_be_written_is_an_error_of_its_own(self):
        source = self.path / "b.txt"
        source.write_text("ab")
        result = subprocess.run([sys.executable, TOOLS / "prepare_data.py", "--tokenizer", self.tokenizer, "--input", source,
                                 "--output", source / "below-a-file"], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (74, 1), result.stderr)


if __name__ == "__main__":
    unittest.main()
