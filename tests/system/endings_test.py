"""How a run ends: exit code, one message, nothing left behind within two seconds. Each ending several times.

Usage: endings_test.py BIN_DIR PROGRAM [REPETITIONS]
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
REPETITIONS = int(sys.argv.pop(1)) if len(sys.argv) > 1 else 5
DEADLINE = 60


def processes_of(marker):
    """Pids whose environment holds the marker: the run's own, whatever they are called."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "environ").read_bytes() and "State:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
            except (OSError, ProcessLookupError):
                pass
    return found


class Run:
    """A run of rp-launch in a scratch TMPDIR, known by a variable in its environment."""

    def __init__(self, *command, workers=3):
        self.scratch = tempfile.TemporaryDirectory()
        marker = f"RP_TEST_RUN={os.getpid()}.{time.monotonic_ns()}"
        self.marker = marker.encode()
        self.shared_memory = set(os.listdir("/dev/shm"))
        name, value = marker.split("=")
        environment = dict(os.environ, TMPDIR=self.scratch.name, **{name: value})
        self.process = subprocess.Popen([BIN / "rp-launch", "--workers", str(workers), *command], env=environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def wait_running(self):
        line = self.process.stdout.readline()
        assert line.startswith("running"), f"{line!r} {self.process.stderr.read()}"
        return int(line.split()[1])

    def end(self, test):
        out, err = self.process.communicate(timeout=DEADLINE)
        deadline = time.monotonic() + 2
        while processes_of(self.marker) and time.monotonic() < deadline:
            time.sleep(0.02)
        test.assertEqual(processes_of(self.marker), [], "processes are left")
        test.assertEqual(set(os.listdir("/dev/shm")) - self.shared_memory, set(), "segments are left")
        test.assertEqual(os.listdir(self.scratch.name), [], "files are left")
        self.scratch.cleanup()
        code = self.process.returncode
        return (128 - code if code < 0 else code), out, err


class Endings(unittest.TestCase):
    def repeat(self, mode, code, *messages, workers=3, act=None):
        for repetition in range(REPETITIONS):
            with self.subTest(mode=mode, repetition=repetition):
                run = Run(PROGRAM, mode, workers=workers)
                if act:
                    act(run)
                actual, out, err = run.end(self)
                self.assertEqual(actual, code, f"{out}\n{err}")
                for message in messages:
                    self.assertEqual(err.count(message), 1, f"'{message}' once in:\n{err}")
                self.assertLessEqual(err.count("\n"), 12, err)

    def test_success_is_0(self):
        self.repeat("success", 0)

    def test_an_exception_in_main_is_1(self):
        self.repeat("throw-in-main", 1, "main's own message")

    def test_an_exception_before_the_start_is_told_once(self):
        self.repeat("throw-before-start", 1, "before the start", workers=8)

    def test_an_exception_in_a_layer_is_1_and_names_its_place(self):
        self.repeat("throw-in-layer", 1, "the layer's own message", "layer 1 ", "microbatch 0", workers=8)

    def test_an_exception_that_no_call_has_thrown_is_told_at_the_end(self):
        self.repeat("throw-unheard", 1, "the layer's own message", "layer 1 ")

    def test_without_rp_launch_a_wrong_variable_is_one_message(self):
        result = subprocess.run([PROGRAM, "success"], env=dict(os.environ, RP_STORE="foo"), capture_output=True, text=True)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual((result.stderr.count("RP_STORE"), result.stderr.count("\n")), (1, 1), result.stderr)

    def test_an_exception_in_the_loss_is_1(self):
        self.repeat("throw-in-loss", 1, "the loss's own message")

    def test_the_programs_own_exit_status_passes_through(self):
        self.repeat("exit-7", 7)

    def test_processes_that_differ_are_1_and_the_layer_is_named(self):
        self.repeat("differ", 1, "the coordinator's model has 4 layers, this worker's has 5", workers=8)
        self.repeat("differ-in-argument", 1, "layer 1 (", workers=8)

    def test_a_segfault_in_a_layer_is_139(self):
        self.repeat("segfault-in-layer", 139, "SIGSEGV")

    def test_an_abort_is_134(self):
        self.repeat("abort-in-layer", 134, "SIGABRT")
        self.repeat("coordinator-aborts", 134, "SIGABRT")

    def test_a_killed_worker_or_coordinator_is_137(self):
        self.repeat("worker-killed", 137, "SIGKILL")
        self.repeat("coordinator-killed", 137, "SIGKILL")

    def test_signals_end_with_128_and_their_number(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            def act(run, number=number):
                run.wait_running()
                run.process.send_signal(number)
            self.repeat("until-signal", 128 + number, act=act)

    def test_after_preempted_they_end_with_75_but_for_int(self):
        for number, code in ((signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)):
            def act(run, number=number):
                run.wait_running()
                run.process.send_signal(number)
            self.repeat("until-preempted", code, act=act)

    def test_a_second_int_is_quick(self):
        def act(run):
            run.wait_running()
            run.process.send_signal(signal.SIGINT)
            time.sleep(0.3)  # two signals at once are one
            start = time.monotonic()
            run.process.send_signal(signal.SIGINT)
            run.process.wait(timeout=DEADLINE)
            self.assertLess(time.monotonic() - start, 4)
        self.repeat("ignore-stop", 130, act=act)

    def test_the_launchers_own_death_takes_all_with_it(self):
        def act(run):
            run.wait_running()
            run.process.kill()
        self.repeat("until-signal", 137, act=act)


if __name__ == "__main__":
    unittest.main(verbosity=1)
