#!/usr/bin/env python3
"""TensorBoard can read the events that a run writes: the numbers of its steps and evaluations are those in
metrics.jsonl and evaluations.jsonl."""

import json
import shutil
import unittest

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launched import LaunchedTest, metrics, settings


class TensorBoardTest(LaunchedTest):
    def test_it_has_every_step_and_evaluation(self):
        self.run_train(settings(self.output, max_steps=3, save_every=1, eval_share=0.2, eval_every=1))
        shutil.rmtree(self.output / "final")  # a run that has ended cannot be resumed
        self.run_train(settings(self.output, max_steps=5, save_every=1, eval_share=0.2, eval_every=1, resume=self.output))
        events = EventAccumulator(str(self.output))
        events.Reload()
        for name, tag in (("loss", "loss"), ("grad_norm", "grad_norm"), ("tokens", "tokens"), ("trained_tokens", "trained_tokens"),
                          ("padded_tokens", "padded_tokens"), ("lr", "learning_rate")):
            with self.subTest(tag):
                values = [(event.step, event.value) for event in events.Scalars(f"train/{tag}")]
                self.assertEqual([step for step, _ in values], [1, 2, 3, 4, 5])
                for (_, value), step in zip(values, metrics(self.output)):
                    self.assertAlmostEqual(value, step[name], delta=1e-6 * abs(step[name]))
        evaluations = [json.loads(line) for line in (self.output / "evaluations.jsonl").read_text().splitlines()]
        self.assertEqual([event.step for event in events.Scalars("eval/loss")], [each["step"] for each in evaluations])


if __name__ == "__main__":
    unittest.main()
