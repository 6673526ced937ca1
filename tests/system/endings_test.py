"""Tests how runs end: with the right exit code and one message, and with nothing left behind after two seconds. Each
ending is tested several times.

Usage: endings_test.py BIN_DIR PROGRAM REPETITIONS [Endings | Dumps]"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
REPETITIONS = int(sys.argv.pop(1))
DEADLINE = 60
NAME_S = 20  # A run of another test has a name in /dev/shm only while it starts, which takes less time than this.
DUMP = "what the processes do now:"
NOTICE = f"{PROGRAM.name}: no further round is begun; Ctrl-C again ends at once\n"


def processes_of(marker):
    """Returns the pids of processes whose environment contains the marker: those of the run, whatever their names."""
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
    """A run of rp-launch in a scratch TMPDIR, identified by a variable in its environment."""

    def __init__(self, *command, workers=3, variables={}, prefix=()):
        self.scratch = tempfile.TemporaryDirectory()
        marker = f"RP_TEST_RUN={os.getpid()}.{time.monotonic_ns()}"
        self.marker = marker.encode()
        self.shared_memory = set(os.listdir("/dev/shm"))
        name, value = marker.split("=")
        environment = dict(os.environ, TMPDIR=self.scratch.name, RP_ON_WORKER_FAILURE="abort", RP_ON_COORDINATOR_FAILURE="abort", **{name: value}) | variables
        self.process = subprocess.Popen([*prefix, BIN / "rp-launch", "--workers", str(workers), *command], env=environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def worker(self, number):
        """Returns the pid of a worker."""
        wanted = [b"RP_ROLE=worker", f"RP_WORKER={number}".encode()]
        for pid in processes_of(self.marker):
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if all(word in variables for word in wanted):
                return pid
        raise AssertionError(f"no worker {number}")

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
        deadline = time.monotonic() + NAME_S
        while (left := set(os.listdir("/dev/shm")) - self.shared_memory) and time.monotonic() < deadline:
            time.sleep(0.02)
        test.assertEqual(left, set(), "segments are left")
        test.assertEqual(os.listdir(self.scratch.name), [], "files are left")
        self.scratch.cleanup()
        code = self.process.returncode
        return (128 - code if code < 0 else code), out, err


class Endings(unittest.TestCase):
    def repeat(self, mode, code, *messages, workers=3, act=None, prefix=()):
        for repetition in range(REPETITIONS):
            with self.subTest(mode=mode, repetition=repetition):
                run = Run(PROGRAM, mode, workers=workers, prefix=prefix)
                if act:
                    act(run)
                actual, out, err = run.end(self)
                self.assertEqual(actual, code, f"{out}\n{err}")
                for message in messages:
                    self.assertEqual(err.count(message), 1, f"'{message}' once in:\n{err}")
                told = err[:err.find(DUMP)] + err[err.find("  to do:"):] if err.count(DUMP) == 1 else err
                self.assertLessEqual(told.count("\n"), 12, err)

    def test_success_is_0(self):
        self.repeat("success", 0)

    def test_an_exception_in_main_is_1(self):
        self.repeat("throw-in-main", 1, "main's own message")

    def test_an_exception_before_the_start_is_reported_once(self):
        self.repeat("throw-before-start", 1, "before the start", workers=8)

    def test_an_exception_after_the_session_is_reported(self):
        self.repeat("throw-after-session", 1, "after the session")

    def test_a_save_that_fails_leaves_nothing_if_it_is_not_caught(self):
        self.repeat("save-fails", 74, "state.safetensors: cannot be written: File too large")

    def test_a_hang_up_under_nohup_is_ignored(self):
        def act(run):
            run.wait_running()
            os.killpg(run.process.pid, signal.SIGHUP)
            time.sleep(0.2)
            self.assertIsNone(run.process.poll())
            run.process.send_signal(signal.SIGTERM)
        self.repeat("until-signal", 143, act=act, prefix=["nohup"])

    def test_an_exception_in_a_layer_is_1_and_names_its_place(self):
        self.repeat("throw-in-layer", 1, "the layer's own message", "layer 1 ", "microbatch 0", workers=8)

    def test_a_layer_that_ends_its_process_is_named(self):
        self.repeat("exit-in-layer", 3, "layer 1, microbatch 0", "a layer must return, or throw to end the run", workers=2)

    def test_an_exception_that_no_call_has_thrown_is_reported_at_the_end(self):
        self.repeat("throw-unheard", 1, "the layer's own message", "layer 1 ")

    def test_without_rp_launch_a_wrong_variable_is_one_message(self):
        result = subprocess.run([PROGRAM, "success"], env=dict(os.environ, RP_STORE="foo"), capture_output=True, text=True)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual((result.stderr.count("RP_STORE"), result.stderr.count("\n")), (1, 1), result.stderr)

    def test_gpus_that_only_the_program_asks_for_are_2(self):
        self.repeat("wants-cuda", 2, "rp-launch --gpus")

    def test_an_exception_in_the_loss_is_1(self):
        self.repeat("throw-in-loss", 1, "the loss's own message")

    def test_the_programs_own_exit_status_passes_through(self):
        self.repeat("exit-7", 7)

    def test_processes_that_differ_are_1_and_the_layer_is_named(self):
        self.repeat("differ", 1, "the coordinator's model has 4 layers, this worker's has 5", workers=8)
        self.repeat("differ-in-argument", 1, "layer 1 (", workers=8)

    def test_a_worker_that_dies_while_rp_launch_is_stopped_is_reported_with_that(self):
        # rp-launch is stopped: first for longer than the run may make no progress, then for less time.
        for seconds in (2.5, 0.2):
            for _ in range(REPETITIONS):
                run = Run(PROGRAM, "until-signal", variables={"RP_WAIT_TIMEOUT": "1"})
                run.wait_running()
                run.process.send_signal(signal.SIGSTOP)
                os.kill(run.worker(1), signal.SIGKILL)
                time.sleep(seconds)
                run.process.send_signal(signal.SIGCONT)
                code, _, err = run.end(self)
                self.assertEqual(code, 137, err)
                self.assertRegex(err, r"rp-launch: worker 1 \(pid \d+\) was killed by SIGKILL")
                self.assertEqual(err.count("while rp-launch was stopped (SIGSTOP)"), 1, err)

    def test_output_that_is_not_read_does_not_hold_up_the_end(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            read_end, write_end = os.pipe()
            process = subprocess.Popen([BIN / "rp-launch", "--workers", "1", "--tag-output", "yes"], stdout=write_end, stderr=subprocess.PIPE, text=True)
            time.sleep(0.5)
            process.send_signal(number)
            start = time.monotonic()
            _, err = process.communicate(timeout=DEADLINE)
            self.assertLess(time.monotonic() - start, 4)
            self.assertEqual(128 - process.returncode if process.returncode < 0 else process.returncode, code, err)
            self.assertRegex(err, r"rp-launch: \S+ \S+ of output could not be written by the end of the run and are dropped\n")
            os.close(read_end)
            os.close(write_end)

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

    def test_after_preempted_signals_other_than_int_end_with_75(self):
        for number, code in ((signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)):
            def act(run, number=number):
                run.wait_running()
                run.process.send_signal(number)
            self.repeat("until-preempted", code, act=act)

    def test_a_second_int_is_quick(self):
        def act(run):
            run.wait_running()
            run.process.send_signal(signal.SIGINT)
            time.sleep(0.3)  # two signals at the same time would count as one
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


def wait_for_standstill(pid, workers):
    """Waits until no process of the run begins a layer or commits a slot, according to its fault board
    (docs/formats/fault_board.md)."""
    board = next(fd for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir() if "fault-board" in os.readlink(fd))
    seen, times = None, 0
    while times < 10:
        data = board.read_bytes()
        now = [int.from_bytes(data[8192 * (1 + i) + 8:][:8], "little") for i in range(1 + workers)]
        now.append(int.from_bytes(data[8192 + 3712:][:8], "little"))
        seen, times = now, times + 1 if now == seen else 0
        time.sleep(0.02)


class Dumps(unittest.TestCase):
    """Runs that make no progress, and runs interrupted twice, print once what each process does or waits for."""

    def ended(self, run, code):
        actual, out, err = run.end(self)
        self.assertEqual(actual, code, f"{out}\n{err}")
        return err

    def assert_one_dump(self, err, why, workers=3):
        self.assertEqual(err.count(DUMP), 1, err)
        self.assertEqual(err.count(why + "; " + DUMP), 1, err)
        dump = err[err.index(DUMP):]
        dump = dump[:dump.index("\n", dump.index("  to do:"))].splitlines()
        for name in ["  coordinator  pid "] + [f"  worker {i}     pid " for i in range(workers)]:
            self.assertEqual(sum(line.startswith(name) for line in dump), 1, f"{name} in:\n{err}")
        self.assertLessEqual(len(dump), 2 + 4 + 5 * workers, err)
        self.assertLessEqual(max(len(line) for line in dump), 160, err)
        return "\n".join(dump)

    def test_an_int_in_mid_run_prints_what_the_program_still_does(self):
        run = Run(PROGRAM, "until-signal", workers=2)
        run.wait_running()
        run.process.send_signal(signal.SIGINT)
        err = self.ended(run, 130)
        self.assertEqual(err, NOTICE)

    def test_a_second_int_prints_what_all_do(self):
        run = Run(PROGRAM, "until-signal")
        run.wait_running()
        os.kill(run.worker(1), signal.SIGSTOP)
        wait_for_standstill(run.worker(0), workers=3)
        run.process.send_signal(signal.SIGINT)
        while run.process.stderr.readline() != NOTICE:
            self.assertIsNone(run.process.poll())
        run.process.send_signal(signal.SIGINT)
        dump = self.assert_one_dump(self.ended(run, 130), "rp-launch: interrupted")
        self.assertRegex(dump, r"newest is round \d+ of step \d+; last slot accepted: \d+, sent: \d+, committed: \d+\n")
        self.assertIn("STOPPED", dump)

    def test_other_signals_print_none(self):
        run = Run(PROGRAM, "until-signal", workers=2)
        run.wait_running()
        run.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.ended(run, 143), NOTICE.replace("; Ctrl-C again ends at once", ""))

    def test_a_healthy_run_prints_none(self):
        self.assertEqual(self.ended(Run(PROGRAM, "success", workers=2, variables={"RP_WAIT_TIMEOUT": "1"}), 0), "")

    def test_a_stopped_worker_is_named_and_who_waits_for_it(self):
        run = Run(PROGRAM, "until-signal", variables={"RP_WAIT_TIMEOUT": "1"})
        run.wait_running()
        stopped = run.worker(1)
        os.kill(stopped, signal.SIGSTOP)
        err = self.ended(run, 124)
        dump = self.assert_one_dump(err, "rp-launch: no progress")
        self.assertIn(f"  worker 1     pid {stopped}, STOPPED", dump)
        self.assertRegex(dump, r"(?m)^    commit     waits [01]\.\d s for worker 1 to complete slot \d+$")
        self.assertRegex(dump, r"(?m)^    (caller|inputs|weights|gradients)  *.*waits [01]\.\d s for ")
        self.assertIn(f"`kill -CONT {stopped}`", dump)
        self.assertRegex(err, rf"rp-launch: worker 1 \(pid {stopped}\) is stopped by a signal: for 1\.\d s nothing was computed or updated")

    def test_a_layer_that_never_ends_is_named(self):
        err = self.ended(Run(PROGRAM, "hang-in-layer", variables={"RP_WAIT_TIMEOUT": "1"}), 124)
        dump = self.assert_one_dump(err, "rp-launch: no progress")
        self.assertRegex(dump, r"computes: slot \d+, \w+ of layers \d-\d, round 0 of step 1, microbatch 0 of 2, layer 1")
        self.assertRegex(dump, r"to do: +slot \d+ of worker \d is the oldest")
        self.assertRegex(err, r"rp-launch: worker \d \(pid \d+\) hangs: for 1\.\d s nothing was computed or updated")
        self.assertRegex(err, r"(?m)^ +#\d endings_program[!+]")

    def test_a_worker_that_does_not_start_is_named(self):
        err = self.ended(Run(PROGRAM, "slow-start", variables={"RP_ATTACH_TIMEOUT": "1"}), 124)
        self.assert_one_dump(err, "rp-launch: no progress")
        self.assertEqual(len(re.findall(r"rp-launch: worker 0 \(pid \d+\) did not start within 1 s \(--attach-timeout", err)), 1, err)

    def test_the_same_standstill_is_not_printed_twice(self):
        run = Run(PROGRAM, "until-signal", variables={"RP_WAIT_TIMEOUT": "1"})
        run.wait_running()
        os.kill(run.worker(1), signal.SIGSTOP)
        wait_for_standstill(run.worker(0), workers=3)
        run.process.send_signal(signal.SIGINT)
        err = self.ended(run, 124)
        self.assert_one_dump(err, "rp-launch: no progress")

    def test_without_rp_launch_a_hang_prints_the_same(self):
        result = subprocess.run([PROGRAM, "hang-in-layer"], env=dict(os.environ, RP_WAIT_TIMEOUT="1"), capture_output=True,
                                text=True, timeout=DEADLINE)
        self.assertEqual(result.returncode, 124, result.stderr)
        self.assert_one_dump(result.stderr, "roundpipe: a wait ran out", workers=1)


if __name__ == "__main__":
    unittest.main(verbosity=1)
