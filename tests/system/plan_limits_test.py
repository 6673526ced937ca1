#!/usr/bin/env python3
"""rp-plan with input at its limits: an answer in bounded time and memory. Beyond them: one line with the number of the
limit."""

import json
import os
import re
import resource
import subprocess
import tempfile
import unittest
from pathlib import Path

import launched

MAX_ADDRESS_SPACE = 1 << 30  # bytes
MAX_PROCESSOR_S = 30
SCHEDULES = ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "roundpipe")
MEMORY = {"weights_mib": 100, "activation_mib": 1, "saved_mib": 3}
# A stage for every layer, which is the maximum number of tasks.
SHORT_STAGES = {"forward_stages": [1] * 1024, "backward_stages": [0] + [1] * 1024}


def limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_PROCESSOR_S, MAX_PROCESSOR_S))


class PlanLimitsTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)

    def rp_plan(self, *words: str, workload: dict, expect: int = 0) -> subprocess.CompletedProcess:
        path = self.directory / "workload.json"
        path.write_text(json.dumps(workload))
        process = subprocess.run([launched.PROGRAMS / "rp-plan", *words, "--input", path, "--effort", "fast"],
                                 capture_output=True, text=True, preexec_fn=limit_resources)
        self.assertEqual(process.returncode, expect, process.stderr)
        self.assertLessEqual(process.stderr.count("\n"), 1)
        return process

    @staticmethod
    def workload(gpus: int, microbatches: int, layers: int, memory: bool = False, **more) -> dict:
        head = {"forward_ms": 1.0, "backward_ms": 2.0} | (MEMORY if memory else {})
        # No two layers are equal, so none are grouped.
        return {"gpus": gpus, "microbatches": microbatches, "hop_ms": 0.1, "head": head,
                "layers": [head | {"forward_ms": 1 + 0.001 * layer} for layer in range(layers)]} | more

    def test_every_schedule_of_the_largest_workloads(self):
        for schedule in SCHEDULES:
            stages = {"stages": "1x1024"} if schedule in ("interleaved", "looped-bfs") else {}
            for layers, microbatches, gpus in ((1024, 1024, 256), (16, 65536, 16)):
                with self.subTest(schedule=schedule, layers=layers):
                    more = stages | SHORT_STAGES if layers == 1024 else {}
                    more = {key: value for key, value in more.items() if (key != "stages") == (schedule == "roundpipe")}
                    out = self.rp_plan("simulate", "--schedule", schedule, workload=self.workload(gpus, microbatches, layers, **more)).stdout
                    self.assertRegex(out, r"\d+\.\d+ ms +bubble")

    def test_memory_of_as_many_tasks_as_are_looked_at(self):
        out = self.rp_plan("compare", workload=self.workload(256, 240, 1024, memory=True, **SHORT_STAGES)).stdout
        self.assertEqual(len(re.findall(r"^(?:\S+|roundpipe async) +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ ", out, re.MULTILINE)), 6, out)

    def test_a_page_of_as_many_tasks_as_are_drawn(self):
        page = self.directory / "page.html"
        self.rp_plan("compare", "--html", str(page), workload=self.workload(64, 55, 1024, memory=True))
        self.assertLess(page.stat().st_size, 32 << 20)

    def test_beyond_them_the_limit_is_named(self):
        for words, workload, code, parts in (
                (("compare",), self.workload(8, 1025, 1024), os.EX_USAGE, ("1024 layers and 1025 microbatches", "1048576 at most")),
                (("compare",), self.workload(8, 4, 1025), os.EX_USAGE, ('"layers" has 1025 entries', "1 to 1024")),
                (("compare",), self.workload(257, 4, 16), os.EX_USAGE, ('"gpus" is 257', "1 to 256")),
                (("compare",), self.workload(256, 1024, 1024, memory=True), 2, ("the memory of", "at most 2000000")),
                (("compare", "--html", str(self.directory / "page.html")), self.workload(256, 1024, 1024), 2, ("tasks to draw", "at most 1000000"))):
            with self.subTest(parts=parts):
                err = self.rp_plan(*words, workload=workload, expect=code).stderr
                for part in parts:
                    self.assertIn(part, err)


if __name__ == "__main__":
    unittest.main()
