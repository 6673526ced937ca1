#!/usr/bin/env python3
"""--debug-worker: one worker runs under gdb or valgrind, from a script or in a terminal, and the run ends with the bits
of a run without the tool."""

import os
import pty
import re
import shlex
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

PROGRAMS = Path(os.environ["RP_PROGRAMS"])
LLAMA = Path(os.environ["RP_TINY_MODEL"]) / "model"
COMMAND = [os.environ["RP_BITS_PROGRAM"], "stage", "stages", str(LLAMA), "routing"]
DEADLINE_S = 240
BREAK = ["set breakpoint pending on", "set confirm off", "break Experts::forward"]
# The instructions that valgrind's processor has, for the libraries that choose theirs.
FEW_INSTRUCTIONS = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "DNNL_MAX_CPU_ISA": "SSE41"}


def launch(*options: str) -> list[str]:
    return [str(PROGRAMS / "rp-launch"), "--workers", "3", *options, *COMMAND]


def values(text: str) -> list[str]:
    """Returns what the program has printed to be compared."""
    return re.findall(r"^routing: .*?(?=\r?$)", text, re.MULTILINE)


def run(*options: str, expect: int = 0, **environment: str) -> subprocess.CompletedProcess:
    process = subprocess.run(launch(*options), capture_output=True, text=True, timeout=DEADLINE_S, env=os.environ | environment)
    assert process.returncode == expect, f"exit code {process.returncode}\n{process.stdout[-2000:]}{process.stderr[-2000:]}"
    return process


class ToolTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = values(run().stdout)

    def script(self, *lines: str) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".gdb", delete=False) as file:
            file.write("\n".join(lines) + "\n")
        self.addCleanup(os.unlink, file.name)
        return file.name

    def under_gdb(self, *lines: str, expect: int = 0) -> subprocess.CompletedProcess:
        return run("--debug-worker", f"1=gdb -q -batch -x {self.script(*BREAK, *lines)} --args", expect=expect)

    def test_a_breakpoint_in_a_layer_changes_no_bit(self):
        where = r'printf "at %#lx\n", $pc'
        process = self.under_gdb("run", "backtrace 1", where, "stepi", where, "next", where, "delete", "continue")
        places = re.findall(r"^at (0x[0-9a-f]+)$", process.stdout, re.MULTILINE)
        self.assertEqual(len(set(places)), 3, f"each step goes on: {places}")
        self.assertRegex(process.stdout, r'"rp-compute" hit Breakpoint 1.*Experts::forward')
        self.assertRegex(process.stdout, r"#0 .*Experts::forward")
        self.assertIn("exited normally", process.stdout)
        self.assertEqual(values(process.stdout), self.expected)
        self.assertRegex(process.stderr, r"^rp-launch: worker 1 runs under \S*/gdb; the others wait for it as long as it takes\n")

    def test_a_worker_goes_on_when_the_debugger_leaves_it(self):
        process = self.under_gdb("run", "delete", "detach")
        self.assertEqual(values(process.stdout), self.expected)

    def test_the_run_ends_when_the_debugger_ends_with_the_worker(self):
        process = self.under_gdb("run", "kill", expect=1)
        self.assertRegex(process.stderr, r"rp-launch: worker 1 \(pid \d+\) ended before the end of the run\n")
        self.assertIn("its tool has ended, and the run with it", process.stderr)

    def test_a_crash_is_looked_into(self):
        process = self.under_gdb("run", "delete", "signal SIGSEGV", "info program", "kill", expect=1)
        self.assertIn("received signal SIGSEGV", process.stdout)

    def test_valgrind(self):
        expected = values(run(**FEW_INSTRUCTIONS).stdout)
        process = run("--debug-worker", "1=valgrind --error-exitcode=9", **FEW_INSTRUCTIONS)
        self.assertEqual(values(process.stdout), expected)
        self.assertIn("ERROR SUMMARY: 0 errors", process.stderr)

    def test_what_is_wrong_is_refused_before_anything_starts(self):
        for option, code, message in (("3", 2, "--debug-worker 3: there is no such worker, the last one is 2"),
                                      ("x", 2, "--debug-worker"),
                                      ("1=", 2, "--debug-worker 1= names no tool: write 1=gdb"),
                                      ("1=no-such-tool", 127, '--debug-worker 1: cannot find the program "no-such-tool"')):
            with self.subTest(option):
                process = run("--debug-worker", option, expect=code)
                self.assertIn(message, process.stderr)
                self.assertEqual(process.stdout, "")


class TerminalTest(unittest.TestCase):
    """A session in which a user types."""

    def setUp(self):
        self.pid = 0
        self.text = ""

    def execute(self, *command: str):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execvp(command[0], command)
        self.addCleanup(self.end)

    def end(self):
        os.close(self.terminal)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def read_until(self, pattern: str):
        """Reads what the terminal shows until it matches, and forgets it."""
        os.set_blocking(self.terminal, False)
        end = time.monotonic() + 60
        while not (found := re.search(pattern, self.text)):
            self.assertLess(time.monotonic(), end, f"{pattern} not in {self.text[-3000:]}")
            try:
                self.text += os.read(self.terminal, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)
        self.text = self.text[found.end():]

    def type(self, text: str):
        os.write(self.terminal, text.encode())

    def exit_code(self) -> int:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            try:  # after the wait, so that what is written last is read
                while text := os.read(self.terminal, 65536):
                    self.text += text.decode(errors="replace")
            except OSError:
                pass  # nothing to read, or all have closed it
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        self.fail(f"does not end: {self.text[-3000:]}")

    def start(self):
        self.execute(*launch("--debug-worker", "1=gdb -q --args"))
        self.break_in_a_layer()

    def break_in_a_layer(self):
        self.read_until(r"\(gdb\) ")
        self.type("set pagination off\nset confirm off\nset breakpoint pending on\nbreak Experts::forward\nrun\n")
        self.read_until(r"hit Breakpoint 1")
        self.read_until(r"\(gdb\) ")

    def test_keys_go_to_the_debugger_and_not_to_the_run(self):
        self.start()
        self.type("\x03")  # at the prompt
        self.read_until(r"Quit\r\n.*\(gdb\) ")
        self.type("\x1a")  # no shell could continue the run
        self.type("echo goes on\\n\n")
        self.read_until(r"(?s)goes on\\n.*goes on")
        self.type("delete\ncontinue\n")
        self.read_until(r"exited normally")
        self.read_until(r"\(gdb\) ")
        self.type("quit\n")
        self.assertEqual(self.exit_code(), 0)

    def test_a_shell_pauses_and_continues_debugger_and_run(self):
        self.execute("bash", "--norc", "--noprofile", "-i")
        self.read_until(r"[$#] ")
        self.type(shlex.join(launch("--debug-worker", "1=gdb -q --args")) + "\n")
        self.break_in_a_layer()
        for _ in range(3):
            self.type("\x1a")
            self.read_until(r"Stopped .*rp-launch(?s:.*)[$#] ")
            self.type("fg\n")
            self.read_until(r"rp-launch.*\r\n")
            self.type("echo goes on\\n\n")
            self.read_until(r"(?s)goes on\\n.*goes on.*\(gdb\) ")
        self.type("\x1a")
        self.read_until(r"Stopped .*rp-launch(?s:.*)[$#] ")
        self.type("bg\n")  # where the debugger may not read the terminal
        self.read_until(r"rp-launch.*&(?s:.*)[$#] ")
        self.type("fg\n")
        self.read_until(r"rp-launch.*\r\n")
        self.type("echo goes on\\n\n")
        self.read_until(r"(?s)goes on.*goes on.*\(gdb\) ")
        self.type("delete\ncontinue\n")
        self.read_until(r"exited normally(?s:.*)\(gdb\) ")
        self.type("quit\n")
        self.read_until(r"[$#] ")
        self.type("exit $?\n")
        self.assertEqual(self.exit_code(), 0)

    def test_quitting_ends_the_run(self):
        self.start()
        self.type("quit\n")
        self.assertEqual(self.exit_code(), 1)
        self.assertIn("its tool has ended, and the run with it", self.text)


if __name__ == "__main__":
    unittest.main()
