#!/usr/bin/env python3
"""Training has the same bits with any number of workers, whatever a model's layers are made of: windows, experts. What was not
trained is exported as it came."""

import json
import unittest
from pathlib import Path

from launched import SAMPLE, LaunchedTest, bits, settings

COMMON = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
          "max_position_embeddings": 64, "initializer_range": 0.1, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "gemma3_text": {"sliding_window": 7, "query_pre_attn_scalar": 12,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True, "mlp_only_layers": [1]},
}


def make_model(family: str, folder: Path) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(4)
    vocabulary = json.loads((SAMPLE / "model" / "config.json").read_text())["vocab_size"]
    config = AutoConfig.for_model(family, vocab_size=vocabulary, **COMMON, **FAMILIES[family])
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


class FamiliesBitsTest(LaunchedTest):
    def check(self, family: str):
        model = make_model(family, self.directory / "model")
        for mode in ({}, {"async": True}):
            found = []
            for launch in (["--workers", "1", "--prefetch", "0"], ["--workers", "2"], ["--workers", "3"], ["--workers", "8"]):
                for grain in ("stage", "layer"):
                    output = self.directory / f"{mode}{launch[1]}{grain}"
                    self.run_train(settings(output, model=model, recompute_grain=grain, **mode), tuple(launch))
                    found.append(bits(output))
            self.assertEqual(len(found[0][0]), 4)
            for other in found:
                self.assertEqual(other, found[0])

    def test_windows(self):
        self.check("gemma3_text")

    def test_experts(self):
        self.check("qwen3_moe")


if __name__ == "__main__":
    unittest.main()
