"""Compares the text on a terminal of 80 and of 120 columns after a run with the screens stored next to this file.

RP_WRITE_SCREENS=1 writes new screens; look at each before you commit it."""

import os
import re
import shlex
import subprocess
import time
import unittest
from pathlib import Path

from launched import DEADLINE_S, PROGRAMS, SAMPLE, LaunchedTest

SCREENS = Path(__file__).parent / "screens"
# Numbers differ between runs and machines. Because their widths differ, so may the positions of
# line breaks between words.
NUMBER = re.compile(r"\d[\d.,:]*(e[-+]\d+)?( (KiB|MiB|GiB|s|ms))?")


class ScreenTest(LaunchedTest):
    def screen(self, columns: int, *options: str, interrupt_after: str = "") -> str:
        """Returns the text that a user sees and can scroll back to. The paths in the command are short, and the same
        each time. `interrupt_after`: Ctrl-C is pressed once this text appears."""
        (self.directory / "model").symlink_to(SAMPLE / "model")
        (self.directory / "jargon.tokens").symlink_to(SAMPLE / "data.tokens")
        words = ["rp-launch", "--workers", "2", "train", "--model", "model", "--data", "jargon.tokens", "--output", "run", "--batch-size", "8",
                 "--sequence-length", "32", "--save-every", "never", *options]
        command = f"cd {shlex.quote(str(self.directory))}; PATH={shlex.quote(str(PROGRAMS))}:$PATH; {shlex.join(words)}; echo \"ended with $?\"; sleep 60"
        tmux = ["tmux", "-L", self.directory.name, "-f", "/dev/null"]
        self.addCleanup(subprocess.run, [*tmux, "kill-server"], capture_output=True)
        # Ctrl-C affects only the run, as in a shell with job control.
        subprocess.run([*tmux, "new-session", "-d", "-x", str(columns), "-y", "100", "bash", "-c", "trap : INT; " + command], check=True,
                       env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"})
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            text = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout
            if "ended with" in text:
                return text.rstrip() + "\n"
            if interrupt_after and interrupt_after in text:
                subprocess.run([*tmux, "send-keys", "C-c"], check=True)
                interrupt_after = ""
            time.sleep(0.2)
        raise AssertionError(f"the run has not ended:\n{text}")

    def compare(self, name: str, shown: str):
        stored = SCREENS / f"{name}.txt"
        if os.environ.get("RP_WRITE_SCREENS"):
            stored.parent.mkdir(exist_ok=True)
            stored.write_text(shown)
        self.assertEqual(*(self.words(text) for text in (shown, stored.read_text())))

    @staticmethod
    def words(text: str) -> str:
        """Joins the lines, so that a line break within a word leaves two words and is detected. Removes the advice for
        machines without huge pages, and sorts the list of a worker's uses of memory, which is ordered by size and so
        depends on the order of its tasks."""
        joined = re.sub(r"pages of .* as root ", "", " ".join(text.split()))
        return re.sub(r"(?<=at its own time: ).*(?= step: )", lambda uses: ", ".join(sorted(uses[0].split(", "))), NUMBER.sub("#", joined))

    def test_a_run_at_80_and_at_120_columns(self):
        for columns in (80, 120):
            with self.subTest(columns):
                shown = self.screen(columns, "--max-steps", "6", "--eval-share", "0.1", "--log-every", "2")
                self.compare(f"train-{columns}", shown)
                self.assertLessEqual(shown[:shown.index("\nspeed: ")].count("\n") + 1, 23, "what is said before the steps fits a small terminal")
                self.setUp()

    def test_ctrl_c_at_80_and_at_120_columns(self):
        for columns in (80, 120):
            with self.subTest(columns):
                shown = self.screen(columns, "--max-steps", "100000", "--log-every", "100000", interrupt_after="activations: ")
                lines = shown.splitlines(keepends=True)
                notice = next(i for i, line in enumerate(lines) if line.startswith("train: finishing"))
                self.compare(f"ctrl-c-{columns}", "".join(lines[notice:]))
                self.setUp()


if __name__ == "__main__":
    unittest.main()
