#!/usr/bin/env python3
"""Creates a tiny model of each family that has layers of its own, with random weights: DIR/FAMILY. One process makes all, because
importing transformers takes longer. Usage: make_family_models.py TINY DIR; TINY was created by make_tiny_model.py."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

COMMON = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
          "max_position_embeddings": 64, "initializer_range": 0.1, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
HYBRID = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "linear_key_head_dim": 8, "linear_value_head_dim": 6,
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
FAMILIES = {
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 8, "q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
                    "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 16,
                    "first_k_dense_replace": 1,
                    "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16,
                                        "mscale": 1.0, "mscale_all_dim": 0.7}},
    "gemma3_text": {"sliding_window": 7, "query_pre_attn_scalar": 12,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "gemma4_text": {"num_hidden_layers": 5, "num_kv_shared_layers": 2, "sliding_window": 7, "head_dim": 8, "global_head_dim": 16,
                    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                    "attention_k_eq_v": True, "hidden_size_per_layer_input": 8, "use_double_wide_mlp": True,
                    "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 16},
    "glm4_moe": {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 16,
                 "routed_scaling_factor": 2.5, "use_qk_norm": True, "attention_bias": True},
    "gpt_oss": {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64, "sliding_window": 7},
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe_text": HYBRID | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True, "mlp_only_layers": [1]},
}


def make_model(family: str, vocabulary: int, folder: Path) -> None:
    torch.manual_seed(4)
    tables = {"vocab_size_per_layer_input": vocabulary} if "hidden_size_per_layer_input" in FAMILIES[family] else {}
    config = AutoConfig.for_model(family, vocab_size=vocabulary, **COMMON | FAMILIES[family] | tables)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    if "linear_attention" in FAMILIES[family].get("layer_types", []):
        use_fp32_for_decays(folder / "model.safetensors")
    if "n_group" in FAMILIES[family]:
        correct_routers(folder / "model.safetensors")
    if family == "gpt_oss":
        pack_experts(folder)
    if family == "gemma4_text":
        add_unused_keys(folder / "model.safetensors")


def add_unused_keys(file: Path) -> None:
    """Adds keys to a layer that uses those of another one, as published files have them."""
    save_file(load_file(file) | {"model.layers.4.self_attn.k_proj.weight": torch.randn(4, 4).bfloat16()}, file, metadata={"format": "pt"})


def pack_experts(folder: Path) -> None:
    """Replaces the experts by random ones in MXFP4, in the layout of OpenAI's files."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name and not name.endswith("_bias")]:
        experts, inputs, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(121, 124, (experts, outputs, inputs // 32), dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config))


def correct_routers(file: Path) -> None:
    """Gives the routers corrections, which are fp32 and initially zeros, and the model a layer that predicts a second token."""
    tensors = load_file(file)
    for name in tensors:
        if name.endswith("e_score_correction_bias"):
            tensors[name] = 0.1 * torch.randn_like(tensors[name])
    tensors[f"model.layers.{COMMON['num_hidden_layers']}.enorm.weight"] = torch.randn(COMMON["hidden_size"]).bfloat16()
    save_file(tensors, file, metadata={"format": "pt"})


def use_fp32_for_decays(file: Path) -> None:
    """Stores the tensors that are fp32 in published files with values that bf16 cannot hold."""
    tensors = load_file(file)
    for name in tensors:
        if name.endswith(("A_log", "linear_attn.norm.weight")):
            tensors[name] = tensors[name].float() * 1.0001
    save_file(tensors, file, metadata={"format": "pt"})


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tiny, directory = map(Path, sys.argv[1:])
    vocabulary = json.loads((tiny / "model" / "config.json").read_text())["vocab_size"]
    for family in FAMILIES:
        make_model(family, vocabulary, directory / family)


if __name__ == "__main__":
    main()
