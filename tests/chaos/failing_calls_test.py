#!/usr/bin/env python3
"""Runs in which one system call fails: the run has the same bits, or ends with a documented code and one message and
can be repeated."""

import os
import re
import tempfile
import unittest
from pathlib import Path

from disturbed_run import Fault, faults_of, run
from scenarios import SCENARIOS
from sweep import LIBRARY, Sweep, line_that_repeats, selection, sweep

SEED = int(os.environ.get("RP_CHAOS_SEED", "18"))
# For each scenario: the processes whose calls fail (toy_program itself is not part of the product),
# and the number of runs in scripts/test.sh.
ALL = ("launcher", "child", "coordinator", "worker0")
PROCESSES = {"toy": ("launcher", "child"), "saving": ALL, "train": ALL, "resume": ALL}
RUNS = {"toy": 30, "saving": 60, "train": 2, "resume": 1}

# Cases that once ended wrongly: scenario, process, call, its path, fault, expected exit code, and
# the index among such calls if it is not the last. Comments describe the former behaviour.
ONCE_WRONG = (
    ("toy", "launcher", "signalfd", "", "EMFILE", 69),  # continued, and no signal could end it
    ("toy", "launcher", "socketpair", "", "EMFILE", 69),  # 125 with a request to report it
    ("toy", "launcher", "fallocate", "fault-board", "EINTR", 0),
    ("toy", "launcher", "open", "/dev/null", "EMFILE", 69),  # workers read the launcher's stdin
    ("saving", "launcher", "open", r"checkpoint-1\.partial-\w+$", "EMFILE", 74, 0),  # the first, for the lock: left the directory
    ("saving", "launcher", "open", r"final\.partial-\w+$", "EINTR", 0),
    ("saving", "launcher", "open", "model.safetensors", "EINTR", 0),
    ("saving", "launcher", "fsync", "model.safetensors", "EINTR", 0),
    ("saving", "launcher", "fsync", "output$", "EINTR", 0),
    ("train", "worker0", "pthread_create", "", "EAGAIN", 69),  # 134
    ("train", "coordinator", "open", "model/tokenizer.json", "EIO", 64),  # 0, but the trained model lacked its tokenizer
    ("resume", "coordinator", "open", r"checkpoint-2/state\.json", "EMFILE", 69),  # the checkpoint was set aside as damaged
    ("resume", "coordinator", "dup", "", "EMFILE", 69),  # 125: a descriptor -1 was sent
)


class LibraryTest(unittest.TestCase):
    """Tests the library itself with shell commands."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-chaos-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def disturbed(self, script: str, fault: Fault | None):
        return run(["bash", "-c", script], self.directory, LIBRARY, fault, 20)

    def test_it_counts_calls_with_their_paths(self):
        outcome = self.disturbed(f"exec mkdir {self.directory}/a {self.directory}/b", None)
        made = [(call.index, call.path) for call in outcome.calls if call.call == "mkdir"]
        self.assertEqual(made, [(1, f"{self.directory}/a"), (2, f"{self.directory}/b")])
        self.assertIsNone(outcome.failed_call())

    def test_it_fails_the_call_that_was_chosen_and_no_other(self):
        outcome = self.disturbed(f"exec mkdir {self.directory}/a {self.directory}/b {self.directory}/c", Fault("launcher", "mkdir", 2, "ENOSPC"))
        self.assertEqual(sorted(path.name for path in self.directory.iterdir() if path.is_dir()), ["a", "c", "tmp"])
        self.assertIn("No space left on device", outcome.err)
        self.assertEqual((outcome.failed_call().index, outcome.failed_call().fault), (2, "ENOSPC"))

    def test_it_fails_only_the_process_that_was_chosen(self):
        for process, code in (("coordinator", 1), ("worker0", 0)):
            outcome = self.disturbed(f"RP_ROLE=coordinator exec mkdir {self.directory}/{process}", Fault(process, "mkdir", 1, "EIO"))
            self.assertEqual(outcome.code, code, outcome.err)

    def test_a_short_write_takes_half(self):
        outcome = self.disturbed(f"exec dd if=/dev/zero of={self.directory}/zeros bs=100 count=1 status=none", Fault("launcher", "write", 1, "short"))
        self.assertEqual(outcome.code, 0, outcome.err)
        self.assertEqual((self.directory / "zeros").stat().st_size, 100, "dd writes the rest")
        self.assertEqual(len([call for call in outcome.calls if call.call == "write"]), 2)

    def test_a_wrong_setting_is_refused(self):
        outcome = self.disturbed("exec true", Fault("launcher", "wrote", 1, "EIO"))
        self.assertEqual((outcome.code, outcome.err), (99, "failing_calls: CHAOS_CALL has no value that I know\n"))

    def test_processes_that_outlive_a_run_are_found_and_ended(self):
        outcome = self.disturbed("sleep 60 >&- 2>&- & true", None)
        self.assertEqual([each.split()[0] for each in outcome.left], ["process"])


class SweepTest(unittest.TestCase):
    """Runs each scenario once without a fault, for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.runners = {}

    def runner(self, name: str) -> Sweep:
        if name not in self.runners:
            work = tempfile.TemporaryDirectory(prefix="rp-chaos-")
            self.addClassCleanup(work.cleanup)
            self.runners[name] = Sweep(SCENARIOS[name], Path(work.name))
        return self.runners[name]

    def sweep(self, name: str, number: int | None):
        runner = self.runner(name)
        faults = [fault for fault in faults_of(runner.calls) if fault.process in PROCESSES[name]]
        if number:
            faults = selection(faults, SEED, number)
        self.assertGreater(len(faults), 0)
        wrong = [verdict for verdict in sweep(runner, faults, os.cpu_count(), None) if verdict.complaints]
        self.assertEqual([f"{line_that_repeats(runner.scenario, each.fault)}: {each.complaints}" for each in wrong], [])


class SomeCallsTest(SweepTest):
    def test_those_of_one_seed_of_as_many_calls_as_there_are(self):
        for name, number in RUNS.items():
            with self.subTest(name):
                self.sweep(name, number)

    def test_cases_that_ended_in_another_way_before(self):
        for name in RUNS:
            runner = self.runner(name)
            cases = [case for case in ONCE_WRONG if case[0] == name]
            faults = []
            for _, process, call, path, fault, _, *which in cases:
                found = [each for each in runner.calls if (each.process, each.call) == (process, call) and re.search(path, each.path)]
                faults.append(Fault(process, call, found[which[0] if which else -1].index, fault))
            for case, verdict in zip(cases, sweep(runner, faults, os.cpu_count(), None)):
                with self.subTest(case):
                    self.assertEqual((verdict.code, verdict.complaints), (case[5], []), verdict.message)


class AllCallsTest(SweepTest):
    def test_of_each_scenario(self):
        for name in RUNS:
            with self.subTest(name):
                self.sweep(name, None)


if __name__ == "__main__":
    unittest.main()
