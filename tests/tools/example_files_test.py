#!/usr/bin/env python3
"""Files of examples: every kind of file has the same rows, and errors for misnamed or damaged files have a remedy."""

import gzip
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from example_files import read_rows  # noqa: E402
from tool import BAD_INPUT, USAGE, ToolError  # noqa: E402

LINES = '{"text": "a\u2028b"}\r\n\r\n{"text": "é"}'.encode()
ARRAY = '[{"text": "a\u2028b"},\n {"text": "é"}]'.encode()
ROWS = [{"text": "a\u2028b"}, {"text": "é"}]


class ExampleFilesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-files-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def read(self, name: str, data: bytes):
        path = self.directory / name
        path.write_bytes(data)
        return list(read_rows(path))

    def refused(self, name: str, data: bytes, *parts: str, code: int = BAD_INPUT):
        with self.assertRaises(ToolError) as raised:
            self.read(name, data)
        self.assertEqual(raised.exception.code, code)
        for part in (name, *parts):
            self.assertIn(part, str(raised.exception))

    def test_lines_arrays_and_packed_files_have_the_same_rows(self):
        for name, data in (("a.jsonl", LINES), ("a.json", ARRAY), ("a.b.jsonl.gz", gzip.compress(LINES)), ("a.json.gz", gzip.compress(ARRAY)),
                           ("a.jsonl", b"\xef\xbb\xbf" + LINES), ("a.json", b"\xef\xbb\xbf" + ARRAY)):
            with self.subTest(name):
                self.assertEqual([row for _, row in self.read(name, data)], ROWS)
        self.assertEqual([place for place, _ in self.read("a.jsonl", LINES)], [f"{self.directory}/a.jsonl: line {n}" for n in (1, 3)])
        self.assertEqual([place for place, _ in self.read("a.json", ARRAY)], [f"{self.directory}/a.json: entry {n}" for n in (1, 2)])
        self.assertEqual(self.read("a.txt.gz", gzip.compress(b"x\ny")), [(f"{self.directory}/a.txt.gz", {"text": "x\ny"})])

    def test_a_misnamed_file_is_refused_with_its_right_name(self):
        self.refused("a.json", b'{"text": "a"}\n{"text": "b"}', "not valid JSON", "Name it .jsonl then")
        self.refused("a.json", b'{"text": "a"}', "one object a line is named .jsonl")
        self.refused("a.jsonl", b'[\n {"text": "a"}\n]', "line 1: is not valid JSON", "Name it .json then")
        self.refused("a.jsonl", b'[{"text": "a"}]', "line 1: is an array", "Name it .json then")
        self.refused("a.parquet", b"PAR1", "must end in", "convert", code=USAGE)
        self.refused("a.gz", gzip.compress(b"x"), "must end in", code=USAGE)

    def test_damage_is_named(self):
        self.refused("a.json", b"[]", "is empty")
        self.refused("a.json", b" \n", "is empty")
        self.refused("a.json", b'[{"a": 1, "a": 2}]', "a key is there twice")
        packed = gzip.compress(LINES * 100)
        self.refused("a.jsonl.gz", packed[:-9], "is no whole gzip file")
        self.refused("a.jsonl.gz", packed[:20] + b"\xff\xff\xff\xff" + packed[24:], "is no whole gzip file")
        self.refused("a.jsonl.gz", LINES, "is no whole gzip file")
        self.refused("a.txt", b"ab\xff", "is not UTF-8 at byte 2")
        self.refused("a.txt", b"\xef\xbb\xbfab\xff", "is not UTF-8 at byte 5")
        with self.assertRaisesRegex(ToolError, "absent.txt: cannot be read: No such file"):
            list(read_rows(self.directory / "absent.txt"))


if __name__ == "__main__":
    unittest.main()
