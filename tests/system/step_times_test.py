#!/usr/bin/env python3
"""The final lines of train: the duration of its steps, and the expected duration."""

import re
import statistics
import unittest

import launched

NUMBER = r"([\d.]+)"


class StepTimesTest(launched.LaunchedTest):
    def test_measured_simulated_and_predicted_stand_side_by_side(self):
        out = self.run_train(launched.settings(self.output, max_steps=9, sequence_length=128), ("--workers", "2", "--gpu-profile", "rtx4090")).stdout
        measured, steps, busy = map(float, re.search(rf"^step: {NUMBER} ms, the median of (\d+); workers compute {NUMBER} % of the time$", out,
                                                     re.MULTILINE).groups())
        seconds = [line["seconds"] for line in launched.metrics(self.output)]
        self.assertLess(measured, 1000 * max(seconds[1:]) * 1.5)
        self.assertGreater(measured, 1000 * min(seconds[1:]) / 1.5)
        self.assertGreater(statistics.median(seconds), 0)
        self.assertTrue(1 <= steps <= 7 and 0 < busy <= 100, out)
        simulated, ratio = map(float, re.search(rf"^  simulated from what its layers took: {NUMBER} ms, measured {NUMBER} times as much$", out,
                                                re.MULTILINE).groups())
        self.assertGreater(simulated, 0)
        self.assertAlmostEqual(ratio, measured / simulated, delta=0.05 * ratio + 0.01)
        self.assertRegex(out, rf"\n  predicted from the model's shape for rtx4090: {NUMBER} ms, measured {NUMBER} times as much\n")
        self.assertLess(out.index("step: "), out.index("the model is in"))

    def test_without_a_profile_nothing_is_predicted(self):
        out = self.run_train(launched.settings(self.output)).stdout
        self.assertIn("\n  simulated from", out)
        self.assertNotIn("predicted", out)

    def test_what_cannot_be_said_is_left_out_or_has_its_reason(self):
        out = self.run_train(launched.settings(self.output, max_steps=2)).stdout
        self.assertNotIn("step: ", out)
        out = self.run_train(launched.settings(self.directory / "fp32", dtype="fp32"), ("--workers", "1", "--gpu-profile", "rtx4090")).stdout
        self.assertIn("\n  not predicted for rtx4090: profiles are of products of 16-bit numbers", out)

    def test_a_file_that_is_no_profile_is_refused_before_the_run(self):
        self.refused(2, "there is no profile 'rtx490' of a GPU (did you mean rtx4090?)", launch=("--workers", "2", "--gpu-profile", "rtx490"))
        wrong = self.directory / "wrong.json"
        wrong.write_text("{}")
        self.refused(64, "wrong.json", launch=("--workers", "2", "--gpu-profile", str(wrong)))


if __name__ == "__main__":
    unittest.main()
