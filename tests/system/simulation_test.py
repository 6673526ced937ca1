#!/usr/bin/env python3
"""Presets on emulated devices: real processes that compute nothing, with stores that are larger than the memory of any
laptop."""

import json
import re
import subprocess
import unittest

import launched


def preset(name: str, **changes) -> list[str]:
    values = {"model": f"preset:{name}", "data": None, "learning_rate": None, "seed": None, "max_steps": 8,
              "batch_size": 16, "num_microbatches": 4, "sequence_length": 2048, "max_grad_norm": 0}
    return launched.settings(None, **(values | changes))


class SimulationTest(launched.LaunchedTest):
    def workload(self, num_layers: int, **device) -> str:
        layers = [{"forward_ms": 4, "backward_ms": 8}] * num_layers
        path = self.directory / "workload.json"
        path.write_text(json.dumps({"gpus": 2, "microbatches": 4, "hop_ms": 0.5, "layers": layers,
                                    "head": {"forward_ms": 6, "backward_ms": 12}, "device": device}))
        return f"sim:{path}"

    def run_modelled(self, train: list[str], device: str, expect: int = 0):
        return self.run_train(train, ("--device", device, "--workers", "2"), expect)

    def test_a_preset_of_half_a_terabyte_runs_and_prints_what_it_measured(self):
        # 96 layers (embedding, 94 decoder layers, head) with 450 GiB of frozen weights.
        device = self.workload(95, time_scale=0.05)
        process = self.run_modelled(preset("qwen3-235b", lora_rank=32, lora_experts=True), device)
        self.assertRegex(process.stdout, r"weights +4\d\d GiB")
        self.assertEqual(len(re.findall(r"^step \d+/8  loss -  ", process.stdout, re.MULTILINE)), 8)
        report = process.stderr
        self.assertRegex(report, r"roundpipe: sim:.*workload.json, 2 workers, \d steps after \d:")
        measured, simulated = map(float, re.search(r"step +([\d.]+) ms +simulated +([\d.]+) ms", report).groups())
        self.assertGreater(measured, 0.95 * simulated, "never faster than the model")
        self.assertLess(measured, 3 * simulated, report)
        self.assertRegex(report, r"computing +[\d.]+ % .*\n.*copies +[\d.]+ % .*\n.*dispatch +[\d.]+ us")

    def test_a_profile_knows_what_a_preset_costs(self):
        process = self.run_modelled(preset("qwen3-1.7b", max_steps=2, batch_size=4), "sim:h100")
        self.assertIn("roundpipe: sim:h100, 2 workers, 1 steps after 1:", process.stderr)

    def test_what_rp_plan_refuses_is_refused(self):
        words = preset("qwen3-1.7b", sequence_length=1 << 18, batch_size=4)
        process = self.run_modelled(words, "sim:rtx4090", 69)
        plan = subprocess.run([launched.PROGRAMS / "rp-plan", "plan", "--model", "qwen3-1.7b", "--gpus", "2", "--batch-size", "4", "--microbatches", "4",
                               "--rounds-per-step", "1", "--sequence-length", str(1 << 18), "--effort", "fast"], capture_output=True, text=True)
        reason = re.search(r"It does not fit: (stages of one layer each do not fit the GPU: .*? are usable\.)", plan.stdout)[1]
        self.assertIn(reason, process.stderr)

    def test_recompute_by_layer_is_simulated_as_such(self):
        # The fused stage is so slow that the backward stage waits for its gradients. If that
        # recomputes by layer, a recompute is still to be done then.
        plan = self.directory / "plan.txt"
        plan.write_text("forward 0-2 | fused 3-29 | backward 0-2")
        steps = []
        for grain in ("stage", "layer"):
            report = self.run_train(preset("qwen3-1.7b", max_steps=2, batch_size=4, recompute_grain=grain),
                                    ("--device", "sim:h100", "--workers", "2", "--plan", str(plan))).stderr
            steps.append(float(re.search(r"step +[\d.]+ ms +simulated +([\d.]+) ms", report).group(1)))
        self.assertGreater(steps[1], steps[0])

    def test_a_folder_needs_its_config_only(self):
        # 235 billion parameters, created here: the folder has no weights, and only the model is
        # specified.
        config = {"model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
                  "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 12288,
                  "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
                  "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False}
        (self.directory / "config.json").write_text(json.dumps(config))
        process = self.run_modelled(["--model", str(self.directory), "--lora-rank", "32", "--max-steps", "1"], self.workload(95))
        self.assertRegex(process.stdout, r"weights +4\d\d GiB")
        self.assertRegex(process.stdout, r"step 1/1  loss -  .* tokens/s")

    def test_the_command_of_a_real_run_is_simulated_as_it_stands(self):
        process = self.run_modelled(launched.settings(self.output), "sim:rtx4090")
        self.assertEqual(len(re.findall(r"^step \d/4  loss -  ", process.stdout, re.MULTILINE)), 4)
        self.assertFalse(self.output.exists())

    def test_what_cannot_be_is_refused(self):
        self.assertIn("runs on an emulated device only", self.run_modelled(preset("qwen3-1.7b"), "cpu", expect=2).stderr)
        self.assertIn("config.json", self.run_modelled(["--model", str(self.directory)], "sim:rtx4090", expect=64).stderr)
        self.assertIn("missing: --model DIR;", self.run_modelled([], "sim:rtx4090", expect=2).stderr)
        self.assertIn("did you mean rtx4090?", self.run_modelled(preset("qwen3-1.7b"), "sim:rtx490", expect=2).stderr)
        self.assertIn("the workload has 7 layers and a head, the model has 30 layers",
                      self.run_modelled(preset("qwen3-1.7b"), self.workload(7), expect=2).stderr)
        self.assertIn("stages of one layer each do not fit the GPU", self.run_modelled(preset("qwen3-235b"), "sim:rtx4090", expect=69).stderr)
        self.assertIn("but the emulated machine has", self.run_modelled(preset("qwen3-235b"), "sim:h200", expect=69).stderr)
        self.assertIn("preset", self.run_modelled(preset("qwen3-1.8b"), "sim:rtx4090", expect=2).stderr)


if __name__ == "__main__":
    unittest.main()
