"""tools/jargon_chat.py with a dictionary of six entries."""

import gzip
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

ENTRIES = {
    "00-database-info": "about this file\n",
    "bogon": "bogon\n /boh'gon/, n.\n\n    1. The elementary particle of {quantum\n    bogodynamics}. See {bogus\n    }, {x}.\n\n    2. Text.\n\n",
    "frob": "frob\n /frob/\n\n    1. vt. To tweak a\n    bit.\n",
    "ITS": "ITS\n //, n.\n\n    Incompatible Time-sharing System.\n",
    "nasal demons": "nasal demons\n n.\n\n    Recognized shorthand.\n",
    "wonky": "wonky\n /won'kee/, adj.\n\n    [from Australian slang] Yet another\n    approximate synonym.\n\n      a table\n      of  two lines\n",
    "egg": "egg\n\n\n    An executable or an egg.\n",
}


def base64(value: int) -> str:
    text = DIGITS[value % 64]
    while value := value // 64:
        text = DIGITS[value % 64] + text
    return text


class JargonChat(unittest.TestCase):
    def test_entries_become_questions_in_sensible_english_and_cleaned_answers(self):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            text, index = b"", ""
            for word, entry in ENTRIES.items():
                index += f"{word}\t{base64(len(text))}\t{base64(len(entry.encode()))}\n"
                text += entry.encode()
            (directory / "jargon.index").write_text(index)
            (directory / "jargon.dict.dz").write_bytes(gzip.compress(text))
            output = directory / "chat.jsonl"
            command = [sys.executable, TOOLS / "jargon_chat.py", "--dictionary", directory, "--output", output]
            subprocess.run(command, check=True, capture_output=True)
            lines = [json.loads(line)["messages"] for line in output.read_text().splitlines()]
            self.assertEqual([[m["role"] for m in messages] for messages in lines], [["user", "assistant"]] * 6)
            self.assertEqual([messages[0]["content"] for messages in lines], [
                "What is a bogon?", "What does 'to frob' mean?", "What is ITS?", "What are nasal demons?",
                "What does 'wonky' mean?", "What is an egg?"])
            answers = [messages[1]["content"] for messages in lines]
            self.assertEqual(answers[0], "bogon /boh'gon/, n.\n\n1. The elementary particle of quantum bogodynamics. See bogus, x."
                                         "\n\n2. Text.")
            self.assertEqual(answers[2], "ITS, n.\n\nIncompatible Time-sharing System.")
            self.assertTrue(answers[4].endswith("Yet another approximate synonym.\n\n  a table\n  of  two lines"), answers[4])

    def test_a_missing_and_a_damaged_dictionary_are_refused(self):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            command = [sys.executable, TOOLS / "jargon_chat.py", "--dictionary", directory, "--output", directory / "x"]
            result = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(result.returncode, 69)
            self.assertIn("dict-jargon", result.stderr)
            (directory / "jargon.index").write_text("word\t!\tB\n")
            (directory / "jargon.dict.dz").write_bytes(gzip.compress(b"text"))
            result = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(result.returncode, 64)
            self.assertIn("line 1", result.stderr)


if __name__ == "__main__":
    unittest.main()
