#!/usr/bin/env python3
"""Evaluations of `train`: their values, that workers and interruptions do not change them, and that the best model is
kept."""

import json
import math
import re
import signal
import struct
import subprocess
import unittest
from array import array
from pathlib import Path

from launched import DEADLINE_S, LaunchedTest, SAMPLE, bits, metrics, settings


def evaluations(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "evaluations.jsonl").read_text().splitlines()]


def same_evaluations(output: Path) -> list[str]:
    """Returns the lines of evaluations.jsonl without their times."""
    return [re.sub(r'"seconds": [^,]*, ', "", line) for line in (output / "evaluations.jsonl").read_text().splitlines()]


def documents_of(path: Path) -> list[list[int]]:
    """Returns the documents of a token file in which all tokens are trained."""
    raw = path.read_bytes()
    num_documents, num_tokens = struct.unpack_from("<QQ", raw, 24)
    ends, tokens = array("Q"), array("I")
    ends.frombytes(raw[80:88 + 8 * num_documents])
    tokens.frombytes(raw[88 + 8 * num_documents:88 + 8 * num_documents + 4 * num_tokens])
    return [tokens[begin:end].tolist() for begin, end in zip(ends, ends[1:])]


class EvaluationTest(LaunchedTest):
    def run_evaluated(self, output: Path, workers: int = 2, launch: tuple = (), **changes):
        values = {"max_steps": 6, "eval_data": SAMPLE / "data.tokens", "eval_every": 2, "sequence_length": 64} | changes
        return self.run_train(settings(output, **values), launch=("--workers", str(workers), *launch))

    def test_the_loss_is_that_of_transformers(self):
        self.run_evaluated(self.output, model=SAMPLE / "model_fp32", dtype="fp32", max_steps=1)
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(SAMPLE / "model_fp32", dtype=torch.float32).eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for document in documents_of(SAMPLE / "data.tokens"):
                for begin in range(0, len(document) - 1, 64):  # as `train` cuts text
                    piece = torch.tensor([document[begin:begin + 65]])
                    logits = model(piece[:, :-1]).logits
                    total += torch.nn.functional.cross_entropy(logits[0], piece[0, 1:], reduction="sum").item()
                    count += piece.shape[1] - 1
        first = evaluations(self.output)[0]
        self.assertEqual((first["step"], first["trained_tokens"]), (0, count))
        self.assertAlmostEqual(first["loss"] / (total / count), 1, delta=1e-5)
        self.assertAlmostEqual(first["perplexity"] / math.exp(first["loss"]), 1, delta=1e-5)

    def test_workers_microbatches_of_it_and_evaluations_change_no_bit(self):
        runs = []
        for workers in (1, 2, 4):
            output = self.directory / f"workers-{workers}"
            self.run_evaluated(output, workers)
            self.assertEqual([each["step"] for each in evaluations(output)], [0, 2, 4, 6])
            runs.append((same_evaluations(output), bits(output)))
        self.assertEqual(runs, [runs[0]] * 3)
        self.run_evaluated(self.output, eval_data=None, eval_every=None)
        self.assertEqual(bits(self.output), runs[0][1], "as without evaluations")
        checked = self.directory / "checked"
        self.run_evaluated(checked, launch=("--check-consistency",))
        self.assertEqual((same_evaluations(checked), bits(checked)), runs[0])

    def test_an_asynchronous_run_is_evaluated_with_its_newest_weights(self):
        self.run_evaluated(self.output, **{"async": True})
        plain = self.directory / "plain"
        self.run_evaluated(plain, eval_data=None, eval_every=None, **{"async": True})
        self.assertEqual(bits(self.output), bits(plain))
        last = evaluations(self.output)[-1]
        again = self.directory / "again"
        self.run_evaluated(again, model=self.output / "final", max_steps=0)
        self.assertEqual(evaluations(again)[0]["loss"], last["loss"], "of the model that was written")

    def test_documents_that_are_held_out_are_not_trained_on(self):
        process = self.run_evaluated(self.output, eval_data=None, eval_share=0.2)
        held_out = evaluations(self.output)[0]["trained_tokens"]
        whole = sum(len(document) - 1 for document in documents_of(SAMPLE / "data.tokens"))
        self.assertGreater(held_out, 0.1 * whole)
        self.assertLess(held_out, 0.3 * whole)
        self.assertRegex(process.stdout, r"evaluation +[\d,]+ trained tokens held out, ")
        epoch = self.directory / "epoch"
        self.run_evaluated(epoch, eval_data=None, eval_share=0.2, max_steps=None, epochs=1, batch_size=1, num_microbatches=1, eval_every=1000)
        self.assertEqual(sum(step["tokens"] for step in metrics(epoch)), whole - held_out)

    def test_an_interrupted_run_has_the_evaluations_of_one_that_was_not(self):
        whole = self.directory / "whole"
        self.run_evaluated(whole, max_steps=40)
        process = subprocess.Popen(self.command(settings(self.output, max_steps=40, eval_data=SAMPLE / "data.tokens", eval_every=2, sequence_length=64),
                                                ["--workers", "2"]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in process.stdout:
            if line.startswith("evaluation after step 8"):
                break
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(DEADLINE_S), 75, process.stdout.read())
        process.stdout.close()
        self.run_evaluated(self.output, max_steps=40, resume="auto")
        self.assertEqual(same_evaluations(self.output), same_evaluations(whole))
        self.assertEqual(bits(self.output), bits(whole))


class BestModelTest(LaunchedTest):
    """Runs with a learning rate that spoils the model, so the best evaluation is an early one."""

    def run_spoiled(self, output: Path, **changes):
        values = {"max_steps": 40, "learning_rate": "0.3", "max_grad_norm": 0, "eval_share": 0.2, "eval_every": 1, "sequence_length": 64,
                  "save_every": "15m"} | changes
        return self.run_train(settings(output, **values))

    def best(self, output: Path) -> int:
        return min(evaluations(output), key=lambda each: each["loss"])["step"]

    def test_the_run_stops_early_and_its_best_checkpoint_and_model_are_kept(self):
        process = self.run_spoiled(self.output, early_stop=3, final_model="best")
        best = self.best(self.output)
        last = evaluations(self.output)[-1]["step"]
        self.assertLess(last, 40)
        self.assertEqual(last, best + 3)
        self.assertIn(f"stopped early after step {last}: 3 evaluations without a better loss than that of step {best}", process.stdout)
        self.assertTrue((self.output / f"checkpoint-{best}").is_dir())
        self.assertTrue((self.output / f"checkpoint-{last}").is_dir())
        self.assertIn(f"the model is in {self.output}/final, that of step {best}", process.stdout)
        again = self.run_spoiled(self.output, early_stop=3, final_model="best", resume="auto")
        self.assertIn("has ended", again.stdout)

    def test_the_best_model_may_be_the_one_that_the_run_began_with(self):
        self.run_spoiled(self.output, learning_rate="1", max_steps=2, final_model="best")
        self.assertEqual(self.best(self.output), 0)
        again = self.directory / "again"
        self.run_train(settings(again, model=self.output / "final", max_steps=0, eval_share=0.2, sequence_length=64))
        self.assertEqual(evaluations(again)[0]["loss"], evaluations(self.output)[0]["loss"])

    def test_the_best_model_is_that_of_its_evaluation(self):
        self.run_spoiled(self.output, learning_rate="1e-2", max_steps=6, final_model="best")
        best = min(evaluations(self.output), key=lambda each: each["loss"])
        again = self.directory / "again"
        self.run_train(settings(again, model=self.output / "final", max_steps=0, eval_share=0.2, sequence_length=64))
        self.assertEqual(evaluations(again)[0]["loss"], best["loss"])


if __name__ == "__main__":
    unittest.main(verbosity=1)
