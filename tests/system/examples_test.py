#!/usr/bin/env python3
"""The examples print the same losses with any number of workers and without rp-launch; the batch script starts, stops
and requeues a job."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAMS = Path(os.environ["RP_PROGRAMS"])
SOURCE = Path(__file__).resolve().parents[2]
BATCH_SCRIPT = SOURCE / "examples" / "batch" / "train.sbatch"
SMALL = "--batch-size 16 --rounds-per-step 4 --num-microbatches 4 --sequence-length 32 "


class ExamplesTest(unittest.TestCase):
    def losses(self, *command: str) -> list[str]:
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual((process.returncode, process.stderr), (0, ""), process.stdout)
        return re.findall(r"loss.*", process.stdout)

    def same_losses(self, example: str) -> list[float]:
        """Checks that the losses are the same with 1 and 2 workers and without rp-launch. Returns them."""
        program, launch = str(PROGRAMS / example), str(PROGRAMS / "rp-launch")
        alone = self.losses(program)
        self.assertGreater(len(alone), 3)
        self.assertGreater(len(set(alone)), 3, "the losses change")
        self.assertEqual(self.losses(launch, "--workers", "1", program), alone)
        self.assertEqual(self.losses(launch, "--workers", "2", program), alone)
        return [float(loss.split()[1]) for loss in alone]

    def test_minimal(self):
        self.same_losses("minimal")

    def test_two_models(self):
        losses = self.same_losses("two_models")
        self.assertLess(losses[-1], losses[0] / 2, "the student learns")

    def test_custom_update(self):
        losses = self.same_losses("custom_update")
        self.assertLess(losses[-1], losses[0] / 2, "Lion learns")


class DigitsTest(unittest.TestCase):
    def run_digits(self, data: Path, *options: str) -> str:
        process = subprocess.run([PROGRAMS / "rp-launch", *options, "digits", data], capture_output=True, text=True, timeout=100)
        self.assertEqual((process.returncode, process.stderr), (0, ""), process.stdout)
        return process.stdout

    def test_real_images_of_digits_are_recognized(self):
        with tempfile.TemporaryDirectory(prefix="rp-digits-") as directory:
            data, plan = Path(directory) / "digits.bin", Path(directory) / "plan"
            plan.write_text("forward 0 1-2 | fused 3-4 | backward 1-2 0\n")
            subprocess.run([sys.executable, SOURCE / "tools" / "export_digits.py", "--output", data], check=True, timeout=60,
                           stdout=subprocess.DEVNULL)
            output = self.run_digits(data, "--workers", "2")
            self.assertEqual(self.run_digits(data, "--workers", "3", "--plan", plan), output)
        epochs = re.findall(r"^epoch (\d+)  loss (\S+)  test accuracy (\S+) %$", output, re.MULTILINE)
        self.assertEqual([int(epoch) for epoch, _, _ in epochs], list(range(1, 9)))
        self.assertGreater(float(epochs[0][1]), 5 * float(epochs[-1][1]), "the loss falls")
        self.assertGreaterEqual(float(epochs[-1][2]), 97)

    def test_a_call_without_data_is_explained(self):
        process = subprocess.run([PROGRAMS / "digits"], capture_output=True, text=True, timeout=60)
        self.assertEqual(process.returncode, 2)
        self.assertIn("usage: digits FILE", process.stderr)


class BatchScriptTest(unittest.TestCase):
    """The script for Slurm without Slurm; batch_test.py has it with Slurm."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-batch-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.stand_in("srun", 'while [[ $1 == -* ]]; do shift; done\nexec "$@"\n')

    def start(self, programs: Path, inputs: dict = {}) -> subprocess.Popen:
        names = {"MODEL": "no-model", "DATA": "no-data", "OUTPUT": "output", "PROGRAMS": str(programs), "SLURM_JOB_ID": "7",
                 "PATH": f"{self.directory}:{os.environ['PATH']}"} | inputs
        return subprocess.Popen(["bash", BATCH_SCRIPT], cwd=self.directory, env=os.environ | names, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def stand_in(self, name: str, text: str):
        path = self.directory / name
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)

    def test_train_takes_all_of_its_options(self):
        process = self.start(PROGRAMS)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 64, errors)  # the model does not exist; a wrong option would be 2
        self.assertIn("no-model", errors)

    def start_small(self, changes: dict = {}) -> subprocess.Popen:
        """Starts the script with the real programs, on a small model for six steps with a checkpoint of each."""
        sample = Path(os.environ["RP_TINY_MODEL"])
        names = {"MODEL": str(sample / "model"), "DATA": str(sample / "data.tokens"), "OPTIONS": SMALL + "--max-steps 6 --save-every 1"}
        return self.start(PROGRAMS, names | changes)

    def end(self, process: subprocess.Popen, code: int) -> str:
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, output + errors)
        return output

    def test_a_job_goes_on_from_the_newest_checkpoint_that_is_whole_or_begins(self):
        process = self.start_small({"OPTIONS": SMALL + "--max-steps 1000000 --save-every never"})
        while not re.match(r"step +2/", next(process.stdout)):
            pass
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        self.assertIn("note: there is no checkpoint in output to resume from: the run begins\n", self.end(self.start_small(), 0))
        output = self.directory / "output"
        losses = (output / "metrics.jsonl").read_text()
        shutil.rmtree(output / "final")
        for step in (5, 6):
            (output / f"checkpoint-{step}" / "state.json").write_text("{")
        self.assertIn("note: resumes from output/checkpoint-4\n", self.end(self.start_small(), 0))
        self.assertEqual(re.findall(r'"loss": ([^,]*)', (output / "metrics.jsonl").read_text()), re.findall(r'"loss": ([^,]*)', losses))
        self.assertTrue((output / "final" / "model.safetensors").is_file())
        self.assertIn("the run in output has ended", self.end(self.start_small(), 0))

    def test_a_job_that_is_warned_of_its_end_is_queued_again(self):
        self.stand_in("rp-launch", "trap 'exit 75' USR1\necho ready\nwhile :; do sleep 0.05; done\n")
        self.stand_in("scontrol", 'echo "$@"\n')
        process = self.start(self.directory)
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.send_signal(signal.SIGUSR1)
        output, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, output), (75, "requeue 7\n"), errors)


if __name__ == "__main__":
    unittest.main()
