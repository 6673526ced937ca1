"""tools/export_digits.py with the images that scikit-learn contains, and with files that contain none."""

import gzip
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "export_digits.py"


class ExportDigits(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.output = self.directory / "digits.bin"

    def export(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, TOOL, "--output", self.output, *words], capture_output=True, text=True, timeout=60)

    def test_the_1797_images_are_rows_of_65_bytes_with_about_as_many_of_each_digit(self):
        process = self.export()
        self.assertEqual((process.returncode, process.stderr), (0, ""))
        data = self.output.read_bytes()
        rows = [data[i:i + 65] for i in range(0, len(data), 65)]
        self.assertEqual((len(rows), len(rows[-1])), (1797, 65))
        self.assertEqual(max(max(row[:64]) for row in rows), 16)
        counts = [sum(row[64] == digit for row in rows) for digit in range(10)]
        self.assertGreater(min(counts), 170)
        # The first image is a zero: a ring with an empty middle.
        self.assertEqual(rows[0][64], 0)
        self.assertEqual(list(rows[0][24:32]), [0, 4, 12, 0, 0, 8, 8, 0])

    def test_what_is_no_table_of_images_is_refused_and_leaves_nothing(self):
        row = ",".join(["3"] * 64)
        for text, part in ((f"{row},10\n", "line 1 is not"), (f"{row},1\n{row}\n", "line 2 is not"), (f"17,{row[2:]},1\n", "line 1"),
                           (f"-1,{row[2:]},1\n", "line 1"), (f"x,{row[2:]},1\n", "no compressed table"), ("", "has no images")):
            file = self.directory / "bad.csv.gz"
            file.write_bytes(gzip.compress(text.encode()))
            process = self.export("--input", file)
            self.assertEqual(process.returncode, 64, process.stderr)
            self.assertIn(part, process.stderr)
            self.assertEqual(process.stderr.count("\n"), 1)
        file.write_bytes(gzip.compress(f"{row},1\n".encode() * 100)[:-20])
        self.assertEqual(self.export("--input", file).returncode, 64, "a file that is cut")
        self.assertEqual(self.export("--input", self.directory / "none").returncode, 64)
        self.assertFalse(self.output.exists())


if __name__ == "__main__":
    unittest.main()
