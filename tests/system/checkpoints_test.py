#!/usr/bin/env python3
"""Checkpoints: damaged ones are refused by name, a run continues from the newest intact one with the bits of a run
that was never interrupted, old ones are deleted, and a trained model can be written later. RP_CHECKPOINT_TRIALS: the
number of damaged output directories and edits to try."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from launched import DEADLINE_S, LaunchedTest, bits, metrics, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from token_file import TokenFileWriter  # noqa: E402

TRIALS = int(os.environ.get("RP_CHECKPOINT_TRIALS", "12"))
STEPS = 6


def checkpoints(output: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("checkpoint-")) for p in output.glob("checkpoint-*"))


def wait_for_step(process: subprocess.Popen, step: int):
    """Reads the process's stdout up to the line of that step. Raises StopIteration if the process ends before."""
    while not re.match(rf"step +{step}/", next(process.stdout)):
        pass


def damage(checkpoint: Path, chance: random.Random) -> str:
    """Makes one change that renders a checkpoint useless. Returns its description."""
    names = ["state.json", "state.safetensors", "XXH128SUMS"]
    file = checkpoint / chance.choice(names)
    data = bytearray(file.read_bytes())
    place = chance.randrange(len(data))
    kind = chance.choice(["flip", "cut", "missing", "empty", "other name", "no files"])
    if kind == "flip":
        data[place] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
    elif kind == "cut":
        file.write_bytes(data[:place])
    elif kind == "missing":
        file.unlink()
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "other name":
        file.rename(checkpoint / "other")
    else:
        for name in names:
            (checkpoint / name).unlink()
    return f"{kind} of {checkpoint.name}/{file.name}"


class DamagedCheckpointsTest(LaunchedTest):
    """A run of STEPS steps that is interrupted after four of them, with a checkpoint of each step."""

    def setUp(self):
        super().setUp()
        self.chance = random.Random(18)
        whole = self.directory / "whole"
        self.run_train(settings(whole, max_steps=STEPS, save_every="never"))
        self.bits = bits(whole)
        self.interrupted = self.directory / "interrupted"
        self.run_train(settings(self.interrupted, max_steps=4, save_every=1))
        shutil.rmtree(self.interrupted / "final")

    def copy(self):
        shutil.rmtree(self.output, ignore_errors=True)
        shutil.copytree(self.interrupted, self.output)

    def test_the_newest_whole_one_is_found_and_gone_on_from(self):
        for trial in range(TRIALS):
            self.copy()
            damaged = self.chance.sample([4, 3, 2, 1], self.chance.randrange(4))
            done = [damage(self.output / f"checkpoint-{step}", self.chance) for step in damaged]
            if self.chance.random() < 0.5:  # as if a save was killed
                partial = self.output / ".checkpoint-5.partial-0123abcd"
                partial.mkdir()
                (partial / "state.safetensors").write_bytes(b"half")
            if self.chance.random() < 0.5:  # as if a write of the metrics was killed
                with open(self.output / "metrics.jsonl", "a") as file:
                    file.write('{"step": 5, "loss": 1.')
            whole = {4, 3, 2, 1} - set(damaged)
            useless = set(damaged) | self.misname(whole, done)
            newest, names = max(whole), checkpoints(self.output)
            with self.subTest(trial=trial, damaged=done):
                out = self.run_train(settings(self.output, max_steps=STEPS, resume="auto", save_every=1)).stdout
                self.assertIn(f"note: resumes from {self.output}/checkpoint-{newest}\n", out)
                later = [step for step in useless if step > newest]
                for step in later:
                    self.assertIn(f"checkpoint-{step} is damaged and now called damaged-checkpoint-{step}: ", out)
                self.assertEqual({p.name for p in self.output.iterdir() if p.name.startswith((".", "damaged"))},
                                 {f"damaged-checkpoint-{step}" for step in later})
                self.assertEqual(bits(self.output), self.bits)
                self.assertEqual(checkpoints(self.output), [step for step in names if step <= newest] + list(range(newest + 1, STEPS + 1)))

    def misname(self, whole: set[int], done: list[str]) -> set[int]:
        """In some trials, renames one intact checkpoint or exchanges the names of two, and removes them from `whole`.
        Returns the steps with wrong names."""
        kind = self.chance.choice(["", "", "rename", "exchange"])
        if len(whole) <= 2 or not kind:
            return set()
        first, second = self.chance.sample(sorted(whole), 2)
        place = {step: self.output / f"checkpoint-{step}" for step in (first, second)}
        whole.discard(first)
        if kind == "rename":
            other = self.chance.choice([5, 6, 7, 40])
            place[first].rename(self.output / f"checkpoint-{other}")
            done.append(f"checkpoint-{first} called checkpoint-{other}")
            return {other}
        whole.discard(second)
        place[first].rename(self.output / "x")
        place[second].rename(place[first])
        (self.output / "x").rename(place[second])
        done.append(f"checkpoint-{first} and checkpoint-{second} exchanged")
        return {first, second}

    def test_an_edit_is_refused_by_name(self):
        for trial in range(TRIALS):
            self.copy()
            done = damage(self.output / "checkpoint-4", self.chance)
            with self.subTest(trial=trial, damaged=done):
                self.refused(64, f"{self.output}/checkpoint-4", untouched=False, resume=self.output, max_steps=STEPS)
                self.assertEqual(checkpoints(self.output), [1, 2, 3, 4])

    def test_an_older_one_may_be_named_where_the_later_ones_are_damaged(self):
        self.copy()
        self.refused(2, "has a checkpoint of step 4", untouched=False, resume=self.output / "checkpoint-2", max_steps=STEPS)
        for step in (3, 4):
            damage(self.output / f"checkpoint-{step}", self.chance)
        self.run_train(settings(self.output, max_steps=STEPS, resume=self.output / "checkpoint-2"))
        self.assertEqual(bits(self.output), self.bits)

    def test_renamed_and_exchanged_directories_are_refused(self):
        self.copy()
        (self.output / "checkpoint-4").rename(self.output / "checkpoint-40")
        self.refused(64, "is the checkpoint of step 4 under another name", untouched=False, resume=self.output, max_steps=STEPS)
        self.copy()
        (self.output / "checkpoint-4").rename(self.output / "x")
        (self.output / "checkpoint-1").rename(self.output / "checkpoint-4")
        (self.output / "x").rename(self.output / "checkpoint-1")
        self.refused(64, "is the checkpoint of step 1 under another name", untouched=False, resume=self.output, max_steps=STEPS)
        out = self.run_train(settings(self.output, max_steps=STEPS, resume="auto")).stdout
        self.assertIn(f"note: resumes from {self.output}/checkpoint-3\n", out)
        self.assertEqual(bits(self.output), self.bits)

    def test_without_a_whole_one_all_are_named_and_nothing_is_changed(self):
        self.copy()
        for step in (1, 2, 3, 4):
            (self.output / f"checkpoint-{step}" / "XXH128SUMS").unlink()
        before = {p: p.stat().st_mtime_ns for p in self.output.rglob("*")}
        message = self.refused(64, "no checkpoint in it is whole", untouched=False, resume="auto", max_steps=STEPS)
        for step in (1, 2, 3, 4):
            self.assertIn(f"{self.output}/checkpoint-{step}", message)
        self.assertEqual({p: p.stat().st_mtime_ns for p in self.output.rglob("*")}, before)


class OtherModelTest(LaunchedTest):
    def test_every_difference_is_named(self):
        model = self.directory / "model"
        shutil.copytree(settings(self.output)[1], model)
        self.run_train(settings(self.output, model=model, max_steps=2))
        shutil.rmtree(self.output / "final")
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"rope_theta": 77.0, "rms_norm_eps": 0.5, "transformers_version": "9.9"}))
        message = self.refused(2, "3 problems", "/rope_theta is 77.0, and was", "/rms_norm_eps is 0.5, and was", "--seed is 5, but", untouched=False,
                               model=model, resume=self.output, max_steps=4, seed=5)
        self.assertNotIn("transformers_version", message)

    def test_other_data_are_refused(self):
        self.run_train(settings(self.output, max_steps=2))
        shutil.rmtree(self.output / "final")
        other = self.directory / "other.tokens"
        text = TokenFileWriter(vocabulary=300, eos_token=None, kind="text")
        for i in range(40):
            text.add([i % 300] * 50, [1] * 50)
        text.write(other)
        self.refused(2, f"--data {other} is not the data that {self.output}/checkpoint-2 was saved with", untouched=False, data=other,
                     resume=self.output, max_steps=4)


class AutomaticResumeTest(LaunchedTest):
    def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(self):
        process = subprocess.Popen(self.command(settings(self.output, max_steps=1000000), ["--workers", "2"]), stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.kill)
        wait_for_step(process, 3)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
        self.assert_nothing_left(within_s=2)
        self.assertEqual(checkpoints(self.output), [])
        out = self.run_train(settings(self.output, resume="auto")).stdout
        self.assertIn(f"note: there is no checkpoint in {self.output} to resume from: the run begins\n", out)
        whole = self.directory / "whole"
        self.run_train(settings(whole))
        self.assertEqual(bits(self.output), bits(whole))

    def test_the_same_command_begins_ends_and_leaves_an_ended_run_alone(self):
        command = settings(self.output, resume="auto")
        self.run_train(command)
        before = {p: p.stat().st_mtime_ns for p in self.output.rglob("*")}
        out = self.run_train(command).stdout
        self.assertRegex(out, f"^the run in {self.output} has ended: its model is in {self.output}/final, [^\n]*\n$")
        self.assertEqual({p: p.stat().st_mtime_ns for p in self.output.rglob("*")}, before)
        self.refused(2, "holds a run that has ended", untouched=False, resume="auto", max_steps=8)


class KeptCheckpointsTest(LaunchedTest):
    def test_the_newest_are_kept(self):
        out = self.run_train(settings(self.output, max_steps=5, save_every=1, save_total_limit=2)).stdout
        self.assertEqual(checkpoints(self.output), [4, 5])
        self.assertEqual(out.count("; that of step 1 is deleted"), 1)
        self.run_train(settings(self.directory / "all", max_steps=5, save_every=2))
        self.assertEqual(checkpoints(self.directory / "all"), [2, 4, 5])
        self.run_train(settings(self.directory / "none", max_steps=5, save_every="never"))
        self.assertEqual(checkpoints(self.directory / "none"), [])
        self.run_train(settings(self.directory / "by time", max_steps=5))
        self.assertEqual(checkpoints(self.directory / "by time"), [5])

    def test_what_was_kept_by_default_stays(self):
        self.run_train(settings(self.output, max_steps=4, save_every=1))
        shutil.rmtree(self.output / "final")
        self.run_train(settings(self.output, max_steps=6, resume="auto"))
        self.assertEqual(checkpoints(self.output), [1, 2, 3, 4, 6])
        shutil.rmtree(self.output / "final")
        self.run_train(settings(self.output, max_steps=8, resume="auto", save_every=1, save_total_limit=3))
        self.assertEqual(checkpoints(self.output), [6, 7, 8])

    def test_by_time(self):
        process = subprocess.Popen(self.command(settings(self.output, max_steps=1000000, save_every="1s"), ["--workers", "2"]),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        saved = 0
        while saved < 4:
            saved += "checkpoint of step" in next(process.stdout)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 75, err)
        self.assertEqual(len(checkpoints(self.output)), 2)


class LaterExportTest(LaunchedTest):
    def test_a_model_that_could_not_be_written_is_written_later(self):
        process = subprocess.Popen(self.command(settings(self.output, max_steps=200, save_every="never"), ["--workers", "2"]),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        wait_for_step(process, 1)
        (self.output / "final").mkdir()
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 74, out + err)
        self.assertIn(f"{self.output}/final: is there already", err)
        self.assertEqual(checkpoints(self.output), [200])
        (self.output / "final").rmdir()
        elsewhere = self.directory / "elsewhere"
        out = self.run_train(["--model", str(settings(self.output)[1]), "--export", str(self.output / "checkpoint-200"), "--output", str(elsewhere)]).stdout
        self.assertEqual(out, f"of {self.output}/checkpoint-200, step 200: the model is in {elsewhere}/final\n")
        self.run_train(settings(self.output, max_steps=200, resume="auto"))
        for name in ("model.safetensors", "config.json", "SHA256SUMS"):
            self.assertEqual((self.output / "final" / name).read_bytes(), (elsewhere / "final" / name).read_bytes())
        self.assertEqual([m["step"] for m in metrics(self.output)], list(range(1, 201)))

    def test_the_adapter_of_a_checkpoint(self):
        self.run_train(settings(self.output, lora_rank=4, lora_alpha=8, save_every=2))
        exported = self.directory / "exported"
        self.run_train(["--model", str(settings(self.output)[1]), "--export", str(self.output), "--output", str(exported), "--save-merged"])
        for name in ("adapter_model.safetensors", "adapter_config.json", "SHA256SUMS"):
            self.assertEqual((self.output / "final" / name).read_bytes(), (exported / "final" / name).read_bytes())
        self.assertTrue((exported / "merged" / "model.safetensors").is_file())

    def test_what_is_wrong_is_said(self):
        self.run_train(settings(self.output))
        model, other = str(settings(self.output)[1]), str(self.directory / "other")
        shutil.copytree(model, other)
        config = json.loads((self.directory / "other" / "config.json").read_text())
        (self.directory / "other" / "config.json").write_text(json.dumps(config | {"rope_theta": 77.0}))
        for words, code, message in ((["--export", str(self.output)], 2, "missing: --model DIR, --output DIR"),
                                     (["--export", str(self.directory / "nowhere"), "--model", model, "--output", str(self.output)], 64, "nowhere"),
                                     (["--export", str(self.output), "--model", model, "--output", str(self.output)], 2, "final is there already"),
                                     (["--export", str(self.output), "--model", other, "--output", "x"], 2, "/rope_theta is 77.0, and was"),
                                     (["--export", str(self.output), "--resume", "auto", "--model", model, "--output", "x"], 2, "--export and --resume")):
            self.assertIn(message, self.run_train(words, expect=code).stderr)


class SumsTest(LaunchedTest):
    def test_sha256sum_reads_those_of_final(self):
        self.run_train(settings(self.output, lora_rank=4, save_merged=True))
        for name in ("final", "merged"):
            checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=self.output / name, capture_output=True, text=True)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
            listed = {line.split("  ", 1)[1] for line in (self.output / name / "SHA256SUMS").read_text().splitlines()}
            self.assertEqual(listed | {"SHA256SUMS"}, {p.name for p in (self.output / name).iterdir()})
        merged = self.output / "merged"
        self.output = self.directory / "of-merged"
        self.run_train(settings(self.output, model=merged))
        self.output = self.directory / "of-damaged"
        weights = bytearray((merged / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (merged / "model.safetensors").write_bytes(weights)
        self.refused(64, "model.safetensors: does not have its checksum in SHA256SUMS next to it", model=merged)
        adapter = self.directory / "output" / "final"
        self.output = self.directory / "next"
        sums = (adapter / "SHA256SUMS").read_text()
        (adapter / "SHA256SUMS").write_text(sums.splitlines(keepends=True)[0])
        self.refused(64, "adapter_model.safetensors: is not listed in SHA256SUMS", adapter=adapter)
        (adapter / "SHA256SUMS").write_text(sums)
        (adapter / "adapter_model.safetensors").write_bytes(b"")
        self.refused(64, "adapter_model.safetensors: does not have its checksum in SHA256SUMS", adapter=adapter)


if __name__ == "__main__":
    unittest.main()
