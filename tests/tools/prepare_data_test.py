"""tools/prepare_data.py: the choice of trained tokens, and the refusal of bad input."""

import gzip
import hashlib
import json
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

import tiny_tokenizer
from forked_tool import run_forked

TOOLS = Path(__file__).resolve().parents[2] / "tools"
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "  yes\n"},
        {"role": "user", "content": "no"}, {"role": "assistant", "content": "é"}]


def read(path: Path) -> tuple[tuple, list[tuple[list[int], list[int]]]]:
    """Returns the fields of the header and the documents."""
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

    def run_tool(self, name: str, content: str | bytes, tokenizer: Path | None = None, more: tuple = ()):
        source = self.path / name
        source.write_bytes(content.encode() if isinstance(content, str) else content)
        output = self.path / "out.tokens"
        output.unlink(missing_ok=True)
        result = run_forked("prepare_data", "--tokenizer", tokenizer or self.tokenizer, "--output", output, "--input", source, *more)
        self.assertEqual(list(self.path.glob(".*.tokens*")), [])
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
        self.assertEqual(header[8:10] + header[11:12], (257, 1, len(tokens)))
        digest = hashlib.sha256((self.tokenizer / "tokenizer.json").read_bytes()).digest()
        self.assertEqual(struct.pack("<Q", header[12]), digest[:8])
        self.assertIn(f"1 documents, {len(tokens)} tokens, {sum(mask)} trained, longest {len(tokens)} (", result.stdout)

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
            ("a.csv", "x", 2, "must end in .txt, .jsonl or .json"), ("a.jsonl", good + "\n{", 64, "line 2: is not valid JSON"),
            ("a.jsonl", "[" * 100000, 64, "line 1: is not valid JSON"), ("a.jsonl", "3", 64, "line 1: must be an object"),
            ("a.jsonl", '{"prompt":"x"}', 64, 'it lacks "completion"'), ("a.jsonl", '{"text":3}', 64, "text is not a string"),
            ("a.jsonl", '{"text":"a","text":"b"}', 64, "twice"), ("a.jsonl", '{"text":"\\ud800"}', 64, "surrogate"),
            ("a.jsonl", good + '\n{"text":"a"}', 64, "line 1 is an example"),
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

    def test_several_files_of_several_formats_become_one_token_file(self):
        two = self.path / "two.json"
        two.write_text("\ufeff" + json.dumps([
            {"instruction": "Add", "input": "1 2", "output": "3", "id": 7},
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}], "system": "S"}]))
        three = self.path / "three.jsonl.gz"
        three.write_bytes(gzip.compress(b'{"prompt": "a ", "completion": "b"}\n'))
        result, output = self.run_tool("one.jsonl", json.dumps({"messages": CHAT[:2]}), more=(two, "--input", three))
        self.assertEqual(result.returncode, 0, result.stderr)
        header, documents = read(output)
        texts = [(self.decode(tokens), self.decode([t for t, m in zip(tokens, mask) if m])) for tokens, mask in documents]
        self.assertEqual(texts[1:], [
            ("<|start|>user\nAdd\n\n1 2<|end|>\n<|start|>assistant\n3<|end|>\n", "3<|end|>"),
            ("<|start|>system\nS<|end|>\n<|start|>user\nhi<|end|>\n<|start|>assistant\nyo<|end|>\n", "yo<|end|>"),
            ("a b<|end|>", "b<|end|>")])
        self.assertEqual((header[4], header[10 - 1]), (4, 1))
        self.assertIn("keys that were not used, and in how many objects: 'id' (1)", result.stderr)

    def test_without_a_chat_template_instructions_get_the_prompt_of_alpaca(self):
        plain = self.path / "no_template"
        tiny_tokenizer.make(plain, None)
        rows = [{"instruction": "Add", "input": "1 2", "output": "3"}, {"instruction": "Go", "input": "", "output": "no"}]
        result, output = self.run_tool("a.json", json.dumps(rows), plain)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("no chat template; instructions were put into the prompt of Alpaca", result.stderr)
        request = "Write a response that appropriately completes the request."
        prompts = [f"Below is an instruction that describes a task, paired with an input that provides further context. {request}\n\n"
                   "### Instruction:\nAdd\n\n### Input:\n1 2\n\n### Response:\n",
                   f"Below is an instruction that describes a task. {request}\n\n### Instruction:\nGo\n\n### Response:\n"]
        for (tokens, mask), prompt, answer in zip(read(output)[1], prompts, ("3", "no")):
            self.assertEqual(self.decode(tokens), f"{prompt}{answer}<|end|>")
            self.assertEqual(mask, [0] * len(prompt) + [1] * (len(answer) + 1))

    def test_what_is_held_out_is_in_the_second_file_and_nowhere_else(self):
        held = self.path / "held.tokens"
        rows = "".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(40))
        result, output = self.run_tool("a.jsonl", rows, more=("--held-out", "10%", "--held-out-output", held))
        self.assertEqual(result.returncode, 0, result.stderr)
        trained, held_out = ([self.decode(tokens) for tokens, _ in read(path)[1]] for path in (output, held))
        self.assertEqual((len(held_out), sorted(trained + held_out)), (4, sorted(f"document {n}<|end|>" for n in range(40))))
        self.assertEqual(read(output)[0][12], read(held)[0][12])
        self.assertRegex(result.stdout, r"out.tokens: 36 documents.*\n.*held.tokens: 4 documents")
        result, _ = self.run_tool("a.txt", "one document", more=("--held-out", "0.5", "--held-out-output", held))
        self.assertEqual((result.returncode, result.stderr.count("\n")), (64, 1), result.stderr)
        self.assertIn("nothing would be left to train of 1 document", result.stderr)

    def test_show_prints_documents_with_their_mask_after_writing(self):
        result, output = self.run_tool("a.jsonl", json.dumps({"messages": CHAT}) + "\n" + json.dumps({"messages": [
            CHAT[0], {"role": "assistant", "content": "\x1b[31mred\x07 \u202e"}]}), more=("--show",))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(output.exists())
        self.assertIn("a.jsonl: line 1: 54 tokens, 10 trained\n<|start|>user\nhi<|end|>\n<|start|>assistant\n[[  yes\n<|end|>]]\n<|start|>user",
                      result.stdout)
        self.assertIn("[[\\x1b[31mred\\x07 \\u202e<|end|>]]", result.stdout)
        self.assertTrue(result.stdout.splitlines()[-1].startswith(f"{output}: 2 documents, "))
        shown = run_forked("prepare_data", "--tokenizer", self.tokenizer, "--input", self.path / "a.jsonl", "--show", "1")
        self.assertEqual((shown.returncode, shown.stdout.count("---"), "nothing written: 2 documents" in shown.stdout), (0, 2, True), shown)

    def test_few_trained_tokens_give_a_warning_and_the_lengths_are_printed(self):
        rows = [{"prompt": "p" * 1000, "completion": "c"}] * 19 + [{"messages": [CHAT[0], CHAT[1] | {"weight": 0}]}]
        result, _ = self.run_tool("a.jsonl", "\n".join(map(json.dumps, rows)))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("warning: 1 of 20 documents have no token to train, and `train` leaves them out; the first is "
                      f"{self.path / 'a.jsonl'}: line 20\n", result.stderr)
        self.assertIn("warning: only 38 of 19067 tokens are trained (0.199 %)", result.stderr)
        self.assertIn("20 documents, 19067 tokens, 38 trained, longest 1002 (0.199 % trained; median 1002, 95 % at most 1002; "
                      "19 longer than 64; 19 longer than 128; 19 longer than 256; 19 longer than 512)", result.stdout)

    def test_the_page_has_the_options_and_formats_of_the_help(self):
        from example_formats import FORMATS
        page = (TOOLS.parent / "docs" / "tools.md").read_text().partition("## prepare_data.py")[2].partition("\n## ")[0]
        options = re.findall(r"^  (--[\w-]+)", run_forked("prepare_data", "--help").stdout, re.MULTILINE)
        self.assertEqual(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", page)) - {"--data", "--eval-data", "--sequence-length"}, set(options))
        self.assertEqual(re.findall(r"^\| `(\w[\w-]*)` \|", page, re.MULTILINE), list(FORMATS))

    def test_options_that_do_not_go_together_are_refused(self):
        source = self.path / "c.txt"
        source.write_text("ab")
        for words, part in (((), "--output and --show"), (("--output", source), "different files"),
                            (("--output", "x", "--held-out", "0.1"), "go together"), (("--output", "x", "--held-out", "0"), "'0' is neither"),
                            (("--output", "x", "--show", "-1"), "-1: is not a number of documents")):
            with self.subTest(part):
                result = run_forked("prepare_data", "--tokenizer", self.tokenizer, "--input", source, *words)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(part, result.stderr)
        self.assertEqual(source.read_text(), "ab")

    def test_a_reader_of_stdout_that_goes_away_and_a_full_disk_below_it_are_distinguished(self):
        words = [sys.executable, TOOLS / "prepare_data.py", "--tokenizer", self.tokenizer, "--input", self.path / "c.txt", "--show"]
        (self.path / "c.txt").write_text("ab")
        with open("/dev/full", "w") as full:
            result = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((result.returncode, result.stderr), (74, "prepare_data.py: standard output cannot be written: No space left on device\n"))
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.close()
        self.assertEqual((process.stderr.read(), process.wait()), ("", 141))
        process.stderr.close()

    def test_a_template_that_rewrites_earlier_turns_is_refused_rather_than_masked_wrongly(self):
        forgetful = self.path / "forgetful"
        tiny_tokenizer.make(forgetful, tiny_tokenizer.FORGETFUL_TEMPLATE)
        result, _ = self.run_tool("a.jsonl", json.dumps({"messages": CHAT[:2]}), forgetful)
        self.assertEqual(result.returncode, 0, result.stderr)
        result, _ = self.run_tool("a.jsonl", json.dumps({"messages": CHAT}), forgetful)
        self.assertEqual(result.returncode, 64)
        self.assertIn("line 1: the chat template renders message 2 differently", result.stderr)
        last_only = [*CHAT[:1], CHAT[1] | {"weight": 0}, *CHAT[2:]]
        result, output = self.run_tool("a.jsonl", json.dumps({"messages": last_only}), forgetful)
        self.assertEqual(result.returncode, 0, result.stderr)
        [(tokens, mask)] = read(output)[1]
        self.assertEqual(self.decode([t for t, m in zip(tokens, mask) if m]), "é<|end|>")

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
        result = run_forked("prepare_data", "--tokenizer", self.tokenizer, "--input", source, "--output", source / "below-a-file")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (74, 1), result.stderr)


if __name__ == "__main__":
    unittest.main()
