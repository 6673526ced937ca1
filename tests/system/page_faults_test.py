#!/usr/bin/env python3
"""Minor page faults of a run's processes: once stages are settled, a step neither allocates memory from the kernel nor
frees any."""

import re
import subprocess
import sys
import time
import unittest
from pathlib import Path

import launched
from launched import LaunchedTest, make_model, processes_of, settings

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
from make_random_model import write_data  # noqa: E402

MOST = 1000  # maximum per step, in any process
# A small model with a large vocabulary: the loss has tensors of tens of MB, which malloc allocates
# from the kernel each time.
WIDE = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=4, vocab_size=150000)
# Stages are cut again after round 10, and every worker must have run each of the new ones.
SETTLED = 16


def minor_faults(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[7])  # field 10 of proc(5)


class FaultsTest(LaunchedTest):
    def check(self, **changes):
        process = subprocess.Popen(self.command(settings(self.output, max_steps=SETTLED + 6, **changes), ["--workers", "2"]),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        deadline = time.monotonic() + launched.DEADLINE_S
        faults, text = [], ""
        for line in process.stdout:
            self.assertLess(time.monotonic(), deadline)
            text += line
            step = re.match(r"step +(\d+)/", line)
            if step and SETTLED <= int(step[1]) < SETTLED + 6:
                faults.append({child: minor_faults(child) for child in processes_of(process)})
        self.assertEqual(process.wait(timeout=60), 0, text)
        self.assertEqual(len(faults), 6, text)
        self.assertEqual([len(of_step) for of_step in faults], [3] * 6, "the coordinator and two workers")
        for child in faults[0]:
            of_steps = [after[child] - before[child] for before, after in zip(faults, faults[1:])]
            print(f"process {child}: {of_steps} minor page faults a step")
            self.assertLess(max(of_steps), MOST, text)


class PageFaultsTest(FaultsTest):
    def test_a_steady_step_has_next_to_none(self):
        model = make_model(self.directory / "model", **WIDE)
        data = self.directory / "data.tokens"
        write_data(data, WIDE["vocab_size"], 64, 200)  # steps of one size: a longer one may allocate memory
        self.check(model=model, data=data, batch_size=4, num_microbatches=2, sequence_length=64)


class LargePageFaultsTest(FaultsTest):
    """Realistic sizes. If LibTorch allocated its tensors with malloc, there would be 345,000 and 910,000 faults."""

    def tool(self, name: str, *words):
        subprocess.run([sys.executable, TOOLS / f"{name}.py", *map(str, words)], check=True, timeout=300)

    def test_smollm2(self):
        launched.DEADLINE_S = 900
        model, chats, data = (self.directory / name for name in ("model", "jargon.jsonl", "jargon.tokens"))
        self.tool("fetch_sample_model", "--output", model)
        self.tool("jargon_chat", "--output", chats)
        self.tool("prepare_data", "--tokenizer", model, "--input", chats, "--output", data)
        self.check(model=model, data=data, batch_size=8, num_microbatches=8, sequence_length=256, learning_rate="1e-4")

    def test_half_a_billion_parameters_with_a_large_vocabulary(self):
        launched.DEADLINE_S = 900
        model = self.directory / "model"
        self.tool("make_random_model", "--shape", "1.7b", "--layers", 4, "--sequence-length", 64, "--sequences", 200, "--output", model)
        self.check(model=model, data=model / "data.tokens", batch_size=2, num_microbatches=2, sequence_length=64, learning_rate="1e-4")


if __name__ == "__main__":
    unittest.main()
