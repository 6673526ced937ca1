#!/usr/bin/env python3
"""The writer of token files: what it reports about its documents. Its bytes are checked by the tests of the reader."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from token_file import TokenFileWriter  # noqa: E402


class TokenFileWriterTest(unittest.TestCase):
    def test_documents_their_lengths_and_those_without_labels(self):
        writer = TokenFileWriter(vocabulary=10, eos_token=None, kind="chat")
        for tokens, mask in (([1, 2, 3], [0, 0, 1]), ([], []), ([4], [1]), ([5, 6], [1, 0]), ([7, 8, 9, 1], [0, 1, 0, 0]), ([2, 2], [0, 0])):
            writer.add(tokens, mask)
        self.assertEqual([tuple(map(list, writer.document(index))) for index in (0, 4)], [([1, 2, 3], [0, 0, 1]), ([2, 2], [0, 0])])
        self.assertEqual((writer.lengths(), writer.longest), ([1, 2, 2, 3, 4], 4))
        self.assertEqual(writer.documents_without_labels(), [1, 2, 4], "the first token of a document is no label")


if __name__ == "__main__":
    unittest.main()
