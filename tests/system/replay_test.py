#!/usr/bin/env python3
"""Workers of real runs are killed, stopped or made to hang at random times. The runs end with the bits of a run that was left
alone, no step is lost, and nothing is left behind (docs/design/replay.md). RP_KILLS: kills in each run; RP_SEED: where the
random times begin."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest

from launched import ABORT, PROGRAMS, SAMPLE, LaunchedTest, bits, hang, may_hang, metrics, serving_workers, settings

KILLS = int(os.environ.get("RP_KILLS", "3"))
SEED = int(os.environ.get("RP_SEED", "20"))
STEPS = 20 + 12 * KILLS


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


class ReplayTest(LaunchedTest):
    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)

    def harmed_run(self, launch: list[str], harms: list, **changes) -> str:
        """Runs train, does harm to random workers at random times, and returns what rp-launch printed. A harm is a function
        of the worker's pid; the next one waits until the worker is gone. No other process may be lost."""
        output = self.directory / "harmed"
        log = self.directory / "log"
        launch = [*launch, "--on-coordinator-failure", "abort"]
        harmed = set()
        with log.open("w") as file:
            process = subprocess.Popen(self.command(settings(output, max_steps=STEPS, **changes), launch), stdout=file, stderr=file, env=may_hang())
            done = 0
            while process.poll() is None and done < len(harms):
                time.sleep(self.random.uniform(0.05, 0.25))
                begun = (output / "metrics.jsonl").exists() and (output / "metrics.jsonl").stat().st_size > 0
                workers = serving_workers(process) if begun else {}
                if workers:
                    pid = self.random.choice(sorted(workers.values()))
                    harms[done](pid)
                    harmed.add(pid)
                    done += 1
                    while process.poll() is None and pid in serving_workers(process).values():
                        time.sleep(0.02)
            code = process.wait(timeout=60)
        text = log.read_text()
        self.assertEqual(code, 0, f"seed {SEED}\n{text[-3000:]}")
        self.assertEqual(done, len(harms), "the run was too short")
        lost = {int(pid) for pid in re.findall(r"rp-launch: worker \d+ \(pid (\d+)\) ", text)}
        self.assertEqual(lost, harmed, f"seed {SEED}\n{text[-3000:]}")
        self.assert_nothing_left()
        steps = [line["step"] for line in metrics(output)]
        self.assertEqual(steps, list(range(1, STEPS + 1)), "each step once")
        return text

    def check(self, launch: list[str], harms: list = [kill] * KILLS, file: str = "model.safetensors", **changes) -> str:
        self.run_train(settings(self.directory / "alone", max_steps=STEPS, **changes), ("--workers", "1"))
        text = self.harmed_run(launch, harms, **changes)
        self.assertEqual(bits(self.directory / "harmed", file), bits(self.directory / "alone", file), f"seed {SEED}")
        return text

    def test_synchronous_steps(self):
        text = self.check(["--workers", "3", "--max-restarts", "1000"])
        self.assertEqual(len(re.findall(r"rp-launch: worker \d \(pid \d+\) was killed by SIGKILL", text)), KILLS, text[-3000:])
        self.assertIn("another process takes its place", text)

    def test_asynchronous_steps(self):
        self.check(["--workers", "2", "--max-restarts", "1000"], **{"async": True})

    def test_several_rounds_on_the_only_worker(self):
        self.check(["--workers", "1", "--max-restarts", "1000"], rounds_per_step=2)

    def test_adapters_while_restarts_are_used_up(self):
        text = self.check(["--workers", "3", "--max-restarts", "1"], harms=[kill] * 3, file="adapter_model.safetensors",
                          lora_rank=4, lora_dropout=0.1)
        self.assertEqual(re.findall(r"another process takes its place|the run goes on with \d workers?", text),
                         ["another process takes its place", "the run goes on with 2 workers", "the run goes on with 1 worker"])

    def test_fewer_and_fewer_workers(self):
        text = self.check(["--workers", "4", "--on-worker-failure", "shrink"], harms=[kill] * 3)
        for left in (3, 2, 1):
            self.assertRegex(text, rf"the run goes on with {left} workers?;")

    def test_workers_that_come_back(self):
        changes = {"max_steps": 400, "save_every": "never"}
        self.run_train(settings(self.directory / "alone", **changes), ("--workers", "1"))
        process = subprocess.Popen(self.command(settings(self.output, **changes), ["--workers", "4", "--on-worker-failure", "shrink"]),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        ctl = [str(PROGRAMS / "rp-launch"), "ctl", "add-worker", "--run", str(process.pid)]
        for num_left in (3, 2, 1):
            self.wait_for_workers(process, num_left + 1)
            os.kill(serving_workers(process)[num_left], signal.SIGKILL)
            self.wait_for_workers(process, num_left)
        refused = subprocess.run([*ctl, "0"], capture_output=True, text=True, timeout=60)
        self.assertEqual((refused.returncode, refused.stderr), (2, "rp-launch: worker 0 runs already\n"))
        for worker in (3, 1, 2):
            words = [str(worker)] if worker == 3 else []  # otherwise the first that has left
            added = subprocess.run([*ctl, *words], capture_output=True, text=True, timeout=60)
            self.assertRegex(added.stdout, rf"^worker {worker} starts \(pid \d+\)\n$", added.stderr)
        self.wait_for_workers(process, 4)
        refused = subprocess.run(ctl, capture_output=True, text=True, timeout=60)
        self.assertEqual((refused.returncode, refused.stderr), (2, "rp-launch: all 4 workers are there\n"))
        # One that has come back may be lost again.
        os.kill(serving_workers(process)[3], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(len(re.findall("rp-launch: worker [123] is started again, as rp-launch ctl has asked", err)), 3, err)
        self.assertEqual(len(re.findall("was killed by SIGKILL", err)), 4, err)
        self.assertEqual(bits(self.output), bits(self.directory / "alone"))

    def wait_for_workers(self, process: subprocess.Popen, number: int):
        """Waits until this many workers serve."""
        end = time.monotonic() + 30
        while len(serving_workers(process)) != number:
            self.assertLess(time.monotonic(), end, f"{serving_workers(process)} and not {number} workers")
            self.assertIsNone(process.poll())
            time.sleep(0.02)

    def test_a_worker_cannot_be_replaced(self):
        """The files of the model change during the run: one has another layer, then one is gone."""
        changes = {"max_steps": 200, "save_every": "never"}
        model = self.directory / "model"
        shutil.copytree(SAMPLE / "model", model)
        self.run_train(settings(self.directory / "alone", model=model, **changes), ("--workers", "1"))
        process = subprocess.Popen(self.command(settings(self.output, model=model, **changes), ["--workers", "3"]),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.read = ""
        self.wait_for_workers(process, 3)
        self.wait_for_steps(process)  # the coordinator reads the file for the last time before the first step
        config = model / "config.json"
        config.write_text(config.read_text().replace('"rms_norm_eps": 1e-05', '"rms_norm_eps": 2e-05'))
        os.kill(serving_workers(process)[2], signal.SIGKILL)
        self.wait_for_workers(process, 2)
        self.wait_for_lines(process, "worker 2 cannot be replaced")
        config.rename(model / "gone")
        os.kill(serving_workers(process)[1], signal.SIGKILL)
        self.wait_for_lines(process, "worker 1 cannot be replaced")
        (model / "gone").rename(config)  # train copies it at the end
        self.read += process.stderr.read()
        self.assertEqual(process.wait(timeout=60), 0, self.read)
        err = self.read
        self.assertRegex(err, r"the processes differ: layer \d+ \(\S+\) was given other arguments than in the coordinator")
        self.assertIn("rp-launch: worker 2 cannot be replaced; the run goes on with 2 workers; ", err)
        self.assertRegex(err, r"config\.json")
        self.assertIn("rp-launch: worker 1 cannot be replaced; the run goes on with 1 worker; ", err)
        self.assertEqual(bits(self.output), bits(self.directory / "alone"))

    def test_a_replacement_that_cannot_be_started(self):
        """rp-launch cannot open any further file; later it can again, and the worker comes back."""
        changes = {"max_steps": 300, "save_every": "never"}
        self.run_train(settings(self.directory / "alone", **changes), ("--workers", "1"))
        process = subprocess.Popen(self.command(settings(self.output, **changes), ["--workers", "3"]), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.read = ""
        self.wait_for_workers(process, 3)
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{process.pid}/fd")) - 3, limits[1]))
        os.kill(serving_workers(process)[2], signal.SIGKILL)
        self.wait_for_lines(process, "rp-launch: worker 2 cannot be replaced; the run goes on with 2 workers\n")
        self.assertRegex(self.read, r"rp-launch: .*raise .*\(ulimit -n\)\n")
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        added = subprocess.run([str(PROGRAMS / "rp-launch"), "ctl", "add-worker", "--run", str(process.pid)], capture_output=True, text=True, timeout=60)
        self.assertRegex(added.stdout, r"^worker 2 starts \(pid \d+\)\n$", added.stderr)
        self.read += process.stderr.read()
        self.assertEqual(process.wait(timeout=60), 0, self.read)
        self.assertEqual(bits(self.output), bits(self.directory / "alone"))

    def wait_for_lines(self, process: subprocess.Popen, text: str):
        """Reads stderr until this text has appeared."""
        while text not in self.read:
            line = process.stderr.readline()
            self.assertTrue(line, self.read)
            self.read += line

    def test_stopped_workers(self):
        text = self.check(["--workers", "3", "--wait-timeout", "1"], harms=[stop, stop])
        self.assertEqual(len(re.findall(r"rp-launch: worker \d \(pid \d+\) is stopped by a signal; `kill -CONT", text)), 2, text)
        self.assertEqual(len(re.findall(r"rp-launch: worker \d \(pid \d+\) was stopped by a signal for 1\.\d s", text)), 2, text)

    def test_workers_that_hang(self):
        text = self.check(["--workers", "3", "--wait-timeout", "1"], harms=[hang, hang])
        self.assertEqual(len(re.findall(r"rp-launch: worker \d \(pid \d+\) hangs: for 1\.\d s nothing", text)), 2, text)
        self.assertEqual(len(re.findall(r"(?m)^ +#0 libspin_on_signal", text)), 2, "where it hangs: " + text)

    def test_a_hang_is_found_without_a_set_time(self):
        """The limit follows from the run's own tasks; it is 10 s for short ones."""
        changes = {"max_steps": 60, "save_every": "never"}
        self.run_train(settings(self.directory / "alone", **changes), ("--workers", "1"))
        process = subprocess.Popen(self.command(settings(self.output, **changes), ["--workers", "2"]), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, env=may_hang())
        self.addCleanup(process.kill)
        self.wait_for_steps(process, 10)
        begin = time.monotonic()
        hang(serving_workers(process)[1])
        self.read = ""
        self.wait_for_lines(process, " hangs: for ")
        self.assertRegex(self.read, r"rp-launch: worker 1 \(pid \d+\) hangs: for 1\d\.\d s nothing")
        self.assertLess(time.monotonic() - begin, 30)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, self.read + err)
        self.assertEqual(bits(self.output), bits(self.directory / "alone"))

    def test_without_replay_the_run_ends(self):
        process = subprocess.Popen(self.command(settings(self.output, max_steps=400), ["--workers", "2", *ABORT]),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not serving_workers(process):
            time.sleep(0.05)
        os.kill(next(iter(serving_workers(process).values())), signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 137, err)


if __name__ == "__main__":
    unittest.main()
