"""What stands on a terminal of 80 and of 120 columns once a run has ended, compared with the stored screens beside this file.

RP_WRITE_SCREENS=1 writes them anew: look at each before you commit it."""

import os
import re
import shlex
import subprocess
import time
import unittest
from pathlib import Path

from launched import DEADLINE_S, PROGRAMS, SAMPLE, LaunchedTest

SCREENS = Path(__file__).parent / "screens"
# Numbers differ between runs and machines; so may, by their width, the places where lines break between words.
NUMBER = re.compile(r"\d[\d.,:]*(e[-+]\d+)?( (KiB|MiB|GiB|s|ms))?")


class ScreenTest(LaunchedTest):
    def screen(self, columns: int) -> str:
        """What a user sees and can scroll back to. The command's paths are short, and the same each time."""
        (self.directory / "model").symlink_to(SAMPLE / "model")
        (self.directory / "jargon.tokens").symlink_to(SAMPLE / "data.tokens")
        words = ["rp-launch", "--workers", "2", "train", "--model", "model", "--data", "jargon.tokens", "--output", "run", "--max-steps", "6",
                 "--batch-size", "8", "--sequence-length", "32", "--eval-share", "0.1", "--log-every", "2", "--save-every", "never"]
        command = f"cd {shlex.quote(str(self.directory))}; PATH={shlex.quote(str(PROGRAMS))}:$PATH; {shlex.join(words)}; echo \"ended with $?\"; sleep 60"
        tmux = ["tmux", "-L", self.directory.name, "-f", "/dev/null"]
        self.addCleanup(subprocess.run, [*tmux, "kill-server"], capture_output=True)
        subprocess.run([*tmux, "new-session", "-d", "-x", str(columns), "-y", "100", "bash", "-c", command], check=True,
                       env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"})
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            text = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout
            if "ended with" in text:
                return text.rstrip() + "\n"
            time.sleep(0.2)
        raise AssertionError(f"the run has not ended:\n{text}")

    def check(self, columns: int):
        stored = SCREENS / f"train-{columns}.txt"
        shown = self.screen(columns)
        if os.environ.get("RP_WRITE_SCREENS"):
            stored.parent.mkdir(exist_ok=True)
            stored.write_text(shown)
        self.assertEqual(*(self.words(text) for text in (shown, stored.read_text())))

    @staticmethod
    def words(text: str) -> str:
        """A line that is broken within a word shows here: its halves are words. Left out is what is said where there are no huge pages;
        what a worker had memory for is listed by size, which depends on the order of its tasks."""
        joined = re.sub(r"pages of .* as root ", "", " ".join(text.split()))
        return re.sub(r"(?<=at its own time: ).*(?= step: )", lambda uses: ", ".join(sorted(uses[0].split(", "))), NUMBER.sub("#", joined))

    def test_80_columns(self):
        self.check(80)

    def test_120_columns(self):
        self.check(120)


if __name__ == "__main__":
    unittest.main()
