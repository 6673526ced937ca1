#!/usr/bin/env python3
"""A task that ends every worker which computes it: the run saves its state, writes the task to a file and ends with 93, and
`rp-launch replay` computes the task again. In these runs of train, an embedding crashes at one token, which one document
contains."""

import os
import random
import re
import subprocess
import time
import unittest
from pathlib import Path

from launched import SAMPLE, LaunchedTest, bits, metrics, settings
from make_tiny_model import VOCABULARY, TokenFileWriter

STEPS = 12
TOKEN = VOCABULARY - 1  # occurs in no other text of the tests
CRASHES = {"LD_PRELOAD": os.environ["RP_CRASH_LIBRARY"], "RP_CRASH_TOKEN": str(TOKEN)}


def make_data(path: Path) -> None:
    """Writes 60 documents, one of which contains the token."""
    choose = random.Random(11)
    file = TokenFileWriter(vocabulary=VOCABULARY, eos_token=257, kind="text")
    for number in range(60):
        tokens = [choose.randrange(96) for _ in range(choose.randint(8, 60))] + [257]
        if number == 30:
            tokens[3] = TOKEN
        file.add(tokens, [1] * len(tokens))
    file.write(path)


class SetAsideTest(LaunchedTest):
    def setUp(self):
        super().setUp()
        self.data = self.directory / "data.tokens"
        make_data(self.data)

    def settings(self, output: Path, **changes) -> list[str]:
        return settings(output, **({"data": self.data, "max_steps": STEPS} | changes))

    def crash(self, launch: tuple, **changes) -> tuple[Path, str]:
        """Runs until the task has ended its workers. Returns its file and what was printed."""
        process = self.run_train(self.settings(self.output, **changes), launch, expect=93, env=os.environ | CRASHES,
                                 cwd=self.directory)
        self.assertIn("this task has ended 3 workers and is not computed again", process.stderr)
        file = Path(re.search(r"rp-launch replay (\S+\.safetensors)", process.stderr)[1])
        self.assertEqual(file.stat().st_mode & 0o777, 0o600, "it contains training data")
        return file, process.stdout + process.stderr

    def replay(self, *words, expect: int = 0, **environment: str) -> str:
        # From another directory: the file names that of the run.
        process = subprocess.run(self.command([], [])[:1] + ["replay", *map(str, words)], capture_output=True, text=True,
                                 timeout=60, cwd="/", env=os.environ | environment)
        self.assertEqual(process.returncode, expect, process.stdout[-2000:] + process.stderr[-2000:])
        self.assert_nothing_left()
        return process.stdout + process.stderr

    def check_the_run_goes_on(self, launch: tuple, **changes):
        """Resumes the run without the crash, and compares it with one that was left alone."""
        alone = self.directory / "alone"
        self.run_train(self.settings(alone, **changes))
        _, text = self.crash(launch, **changes)
        done = int(re.search(r"stopped by SIGTERM after step (\d+); go on", text)[1])
        self.assertGreater(done, 0, "the test wants a step before the token")
        self.assertEqual([line["step"] for line in metrics(self.output)], list(range(1, done + 1)))
        self.run_train(self.settings(self.output, **changes) + ["--resume", "auto"])
        self.assertEqual([line["step"] for line in metrics(self.output)], list(range(1, STEPS + 1)))
        self.assertEqual(bits(self.output), bits(alone))

    def test_synchronous_steps(self):
        self.check_the_run_goes_on(("--workers", "3"))

    def test_asynchronous_steps_in_several_rounds(self):
        self.check_the_run_goes_on(("--workers", "2"), rounds_per_step=2, **{"async": True})

    def test_the_only_worker(self):
        self.check_the_run_goes_on(("--workers", "1"))

    def test_no_worker_is_left(self):
        self.check_the_run_goes_on(("--workers", "3", "--on-worker-failure", "shrink"))

    def test_the_task_is_computed_again(self):
        file, text = self.crash(("--workers", "2", "--wait-timeout", "300"))
        self.assertEqual(file.parent, self.directory)
        before = sorted(self.output.rglob("*"))
        task = re.search(r"roundpipe: error: (the forward stage of layers? \S+, round \d+, step \d+) has ended every worker", text)[1]
        self.assertIn(f"{task} has ended without an error", self.replay(file))
        text = self.replay(file, expect=139, **CRASHES)
        self.assertRegex(text, r"worker 0 \(pid \d+\) was killed by SIGSEGV")
        self.assertRegex(text, r"\n  where:  task 0, forward stage of .*\n  inputs: Long\[\d+, 32\], Long\[\d+, \d+\]\n")
        self.assertIn("forward stage of layer", text)
        script = self.directory / "script.gdb"
        script.write_text("set confirm off\nset breakpoint pending on\nbreak rp::models::embed\nrun\nbacktrace 2\ndelete\ncontinue\n")
        text = self.replay(file, "--debug-worker", f"0=gdb -q -batch -x {script} --args")
        self.assertRegex(text, r'"rp-compute" hit Breakpoint 1.*embed')
        self.assertIn("has ended without an error", text)
        self.assertEqual(sorted(self.output.rglob("*")), before, "the output of the run is as it was")

    def test_without_restarts_of_the_program_there_is_no_checkpoint(self):
        file, text = self.crash(("--workers", "2", "--on-coordinator-failure", "abort"))
        self.assertTrue(file.exists())
        self.assertNotIn("started again to save", text)

    def test_the_file_cannot_be_written(self):
        process = self.run_train(self.settings(self.output), ("--workers", "2"), expect=93, cwd="/proc",
                                 env=os.environ | CRASHES | {"TMPDIR": "/sys"})
        self.assertIn("it could not be written to a file: ", process.stderr)
        self.assertRegex(process.stdout, r"checkpoint of step \d+ written")

    def test_what_is_wrong_is_refused(self):
        file, _ = self.crash(("--workers", "2"))
        self.assertIn("needs the file of a task", self.replay(expect=2))
        self.assertIn("takes one file, and no program", self.replay(file, "train", expect=2))
        self.assertIn("/no-such-file: No such file or directory", self.replay("/no-such-file", expect=64))
        self.assertIn("is not a task of this version", self.replay(SAMPLE / "model" / "model.safetensors", expect=64))
        if os.geteuid() == 0:
            os.chown(file, 65534, 65534)
            self.assertIn("belongs to user 65534", self.replay(file, expect=64))
            os.chown(file, 0, 0)
        data = self.data.rename(self.directory / "moved")
        self.assertIn("has ended without an error", self.replay(file), "the data are in the file")
        self.assertTrue(data.exists())


class AttachOnFaultTest(LaunchedTest):
    def test_a_process_that_crashes_waits_for_a_debugger(self):
        data = self.directory / "data.tokens"
        make_data(data)
        log = self.directory / "log"
        with log.open("w") as file:
            process = subprocess.Popen(self.command(settings(self.output, data=data, max_steps=STEPS),
                                                    ["--workers", "2", "--attach-on-fault", "--wait-timeout", "1"]),
                                       stdout=file, stderr=file, cwd=self.directory, env=os.environ | CRASHES)
        self.addCleanup(process.kill)
        for number in range(3):
            end = time.monotonic() + 60
            while len(pids := re.findall(r"waits for a debugger: gdb -p (\d+)", log.read_text())) <= number:
                self.assertIsNone(process.poll(), log.read_text()[-3000:])
                self.assertLess(time.monotonic(), end, log.read_text()[-3000:])
                time.sleep(0.05)
            if number == 0:
                time.sleep(3)  # nothing counts as a hang meanwhile
            gdb = subprocess.run(["gdb", "-q", "-batch", "-p", pids[number], "-ex", "thread apply all backtrace"],
                                 capture_output=True, text=True, timeout=60)
            self.assertRegex(gdb.stdout, r"<signal handler called>\n(.*\n)*.*rp::models::embed", gdb.stdout[-3000:] + gdb.stderr)
        self.assertEqual(process.wait(timeout=60), 93)
        self.assert_nothing_left()
        text = log.read_text()
        self.assertEqual(len(re.findall(r"worker \d \(pid \d+\) was killed by SIGSEGV", text)), 3)
        self.assertNotIn("hangs", text)


if __name__ == "__main__":
    unittest.main()
