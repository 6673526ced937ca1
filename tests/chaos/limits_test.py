#!/usr/bin/env python3
"""Runs under limits of the system and with common mistakes of users. Each ends with its documented code and one
message with a remedy, leaves nothing behind, and the same command succeeds once the limit is gone."""

import os
import pwd
import re
import resource
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from disturbed_run import Fault, Outcome, run
from scenarios import PROGRAMS, SCENARIOS, TESTS
from sweep import LIBRARY, messages_of

NOBODY = "nobody"


class LimitsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-chaos-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        SCENARIOS["train"].prepare(self.directory)

    def command(self, workers: int) -> list[str]:
        words = SCENARIOS["train"].command(self.directory)
        words[words.index("--workers") + 1] = str(workers)
        return words

    def disturbed(self, command: list[str], fault: Fault | None = None, deadline_s: float = 60) -> Outcome:
        outcome = run(command, self.directory, LIBRARY if fault else None, fault, deadline_s)
        self.assertEqual(outcome.left, [])
        return outcome

    def limited(self, options: str, command: list[str]) -> Outcome:
        """Runs the command under `ulimit OPTIONS`."""
        return self.disturbed(["bash", "-c", f'ulimit {options} && exec "$@"', "bash", *command])

    def assert_refused(self, outcome: Outcome, codes: tuple, remedy: str):
        self.assertIn(outcome.code, codes, outcome.out[-500:] + outcome.err)
        self.assertEqual(len(messages_of(outcome.err)), 1, outcome.err)
        self.assertIn(remedy, outcome.err)

    def assert_runs_again(self, first: Outcome, workers: int):
        """Runs again without the limit, and checks that no saved data is lost."""
        second = self.disturbed([*self.command(workers), "--resume", "auto"])
        self.assertEqual(second.code, 0, second.err)
        self.assertEqual(SCENARIOS["train"].complaints_of_again(first, second, self.directory), [])


class DescriptorsTest(LimitsTest):
    """Limits on descriptors: `ulimit -n`."""

    def test_a_launcher_with_few_descriptors_says_which_limit_to_raise(self):
        for limit in (12, 20):
            with self.subTest(limit):
                outcome = self.limited(f"-n {limit}", self.command(4))
                self.assert_refused(outcome, (69,), "ulimit -n")
                self.assertFalse((self.directory / "output").exists())
        self.assert_runs_again(outcome, 4)

    def test_every_limit_up_to_the_one_that_is_enough(self):
        """Uses a program without LibTorch, which is fast enough to try every limit."""
        for limit in range(5, 64):
            with self.subTest(limit):
                outcome = self.limited(f"-n {limit}", [str(PROGRAMS / "rp-launch"), "--workers", "4", str(TESTS / "toy_program"), "exit", "0"])
                if outcome.code == 0:
                    return
                self.assert_refused(outcome, (69,), "ulimit -n")
        self.fail("63 descriptors are too few for four workers")


class ProcessesTest(LimitsTest):
    """Limits on processes: `ulimit -u`. It does not apply to root, so these runs belong to another user. If that is
    impossible, calls fail."""

    def test_another_user_with_few_processes(self):
        words = ["setpriv", f"--reuid={NOBODY}", "--regid=nogroup", "--clear-groups"]
        if os.getuid() != 0 or subprocess.run([*words, str(PROGRAMS / "rp-launch"), "--version"], capture_output=True).returncode != 0:
            self.skipTest(f"needs root, and programs that {NOBODY} may run")
        os.chown(self.directory, pwd.getpwnam(NOBODY).pw_uid, -1)
        self.directory.chmod(0o777)
        for limit in (1, 2, 4, 8, 12, 13):
            with self.subTest(limit):
                outcome = self.limited(f"-u {limit}", [*words, *self.command(2)])
                self.assert_refused(outcome, (69,), "ulimit -u")

    def test_no_further_process_and_no_further_thread(self):
        for process, call, first in (("launcher", "fork", 1), ("launcher", "fork", 2), ("launcher", "fork", 3), ("coordinator", "pthread_create", 1), ("worker0", "pthread_create", 1),
                                     ("coordinator", "pthread_create", 3), ("worker0", "pthread_create", 3)):
            with self.subTest(f"{process} {call} {first}"):
                outcome = self.disturbed(self.command(1), Fault(process, call, first, "EAGAIN", 1_000_000))
                self.assertIsNotNone(outcome.failed_call())
                self.assert_refused(outcome, (69,), "ulimit -u")
                shutil.rmtree(self.directory / "output", ignore_errors=True)


class FileSizeTest(LimitsTest):
    """Limits on file sizes: `ulimit -f`, in KiB, which applies to shared memory, too."""

    def test_activations_that_outgrow_it(self):
        words = self.command(2)
        for option, value in (("--batch-size", "1024"), ("--sequence-length", "128")):
            words[words.index(option) + 1] = value
        self.assert_refused(self.limited("-f 4096", words), (69,), "ulimit -f")

    def test_from_nothing_to_enough(self):
        seen = set()
        for limit in (0, 64, 512, 65536):
            with self.subTest(limit):
                outcome = self.limited(f"-f {limit}", self.command(1))
                seen.add(outcome.code)
                if outcome.code != 0:
                    self.assert_refused(outcome, (69, 74), "ulimit -f")
                shutil.rmtree(self.directory / "output", ignore_errors=True)
        self.assertIn(69, seen)
        self.assertIn(0, seen)


class ForkedChildTest(LimitsTest):
    """The end of a process that the program has forked does not affect the run."""

    def losses(self, end: str) -> tuple[list[str], Outcome]:
        outcome = self.disturbed([str(PROGRAMS / "rp-launch"), "--workers", "2", str(TESTS / "forking_program"), end])
        self.assertEqual(outcome.code, 0, outcome.out + outcome.err)
        return re.findall(r"step .*", outcome.out), outcome

    def test_a_child_that_ends_in_any_way(self):
        expected, _ = self.losses("none")
        self.assertEqual(len(expected), 10)
        for end, code, message in (("leave", 3, ""), ("return", 1, "let it end with _exit()"), ("throw", 1, "of the child"), ("crash", 139, "")):
            with self.subTest(end):
                losses, outcome = self.losses(end)
                self.assertEqual(losses, expected)
                self.assertIn(f"the child ended with {code}\n", outcome.out)
                self.assertEqual(outcome.err.count("\n"), 1 if message else 0, outcome.err)
                self.assertIn(message, outcome.err)


class MetricsTest(LimitsTest):
    """A metrics.jsonl that was damaged after the run."""

    def test_the_run_goes_on_from_its_checkpoint_or_says_what_to_do_for_that(self):
        whole = self.disturbed(self.command(1))
        self.assertEqual(whole.code, 0, whole.err)
        bits = SCENARIOS["train"].bits(self.directory)
        output = self.directory / "output"
        metrics = (output / "metrics.jsonl").read_bytes()
        lines = metrics.splitlines(keepends=True)
        for name, damaged, code in (("half a last line", lines[0] + lines[1][:20], 0), ("the last line is missing", lines[0], 0),
                                    ("no line", b"", 0), ("zeros behind the last line", metrics + bytes(512), 0),
                                    ("zeros in the place of a line", bytes(len(lines[0])) + b"\n" + lines[1], 64),
                                    ("not JSON", b"once upon a time\n", 64), ("a flipped bit", b"\x7b\xa2" + metrics[2:], 64)):
            with self.subTest(name):
                shutil.rmtree(output / "final", ignore_errors=True)
                (output / "metrics.jsonl").write_bytes(damaged)
                outcome = self.disturbed([*self.command(1), "--resume", "auto"])
                self.assertEqual(outcome.code, code, outcome.out + outcome.err)
                if code != 0:
                    self.assert_refused(outcome, (code,), "Move the file away, and the run goes on with a new one")
                    (output / "metrics.jsonl").unlink()
                    outcome = self.disturbed([*self.command(1), "--resume", "auto"])
                    self.assertEqual(outcome.code, 0, outcome.out + outcome.err)
                self.assertEqual(SCENARIOS["train"].bits(self.directory)["final"], bits["final"])


if __name__ == "__main__":
    unittest.main()
