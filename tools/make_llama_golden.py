#!/usr/bin/env python3
"""Writes the golden values of tests/models: a tiny random Llama and what transformers computes with it, in fp32.

    .venv/bin/python tools/make_llama_golden.py [--output tests/models/golden]

tiny/            the model as a Hugging Face directory: grouped queries, tied embeddings, biases, llama3 rope scaling
tiny_values.safetensors
    ids, labels [2, 9], divisor              the batch; label -100 is not trained
    layer.<i>.output, layer.<i>.grad_output  of the embedding (0), the decoder layers (1 and 2), the final norm (3)
    logits, loss                             loss = sum of the trained tokens' cross entropy / divisor
    grad.<tensor>                            of every parameter; embedding and LM head apart, though they are tied
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, LENGTH, DIVISOR = 2, 9, 23.0


def make_config(tied):
    return LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=tied,
        attention_bias=True, mlp_bias=True, dtype="float32",
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64})


def make_model():
    """Creates an untied model, so that each use of the embedding has its own gradient, but with equal weights."""
    torch.manual_seed(20)
    model = LlamaForCausalLM(make_config(tied=False)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/models/golden"))
    output = parser.parse_args().output
    torch.set_num_threads(1)
    model = make_model()

    ids = torch.randint(0, 61, (BATCH, LENGTH))
    ids[1, 3:6] = ids[0, 2]  # one token at several positions
    labels = torch.randint(0, 61, (BATCH, LENGTH))
    labels[0, :4] = -100
    labels[1, -1] = -100

    layers = {}
    for i, module in enumerate([model.model.embed_tokens, *model.model.layers, model.model.norm]):
        def keep(_module, _inputs, result, i=i):
            layers[i] = result
            result.retain_grad()
        module.register_forward_hook(keep)
    logits = model(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100,
                                             reduction="sum") / DIVISOR
    loss.backward()

    values = {"ids": ids, "labels": labels, "divisor": torch.tensor(DIVISOR), "logits": logits, "loss": loss}
    for i, result in layers.items():
        values[f"layer.{i}.output"] = result
        values[f"layer.{i}.grad_output"] = result.grad
    for name, parameter in model.named_parameters():
        values[f"grad.{name}"] = parameter.grad
    (output / "tiny").mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().clone().contiguous() for name, value in values.items()},
              output / "tiny_values.safetensors")
    weights = {name: p.detach().clone() for name, p in model.named_parameters() if name != "lm_head.weight"}
    save_file(weights, output / "tiny" / "model.safetensors", metadata={"format": "pt"})
    config = make_config(tied=True).to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (output / "tiny" / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
