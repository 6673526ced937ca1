"""Shared by tests of models whose files are quantised: replaces weights of a model's folder by 8-bit floats, or by NF4 of bitsandbytes."""

import json
import os
from pathlib import Path

import torch

os.environ["TORCH_COMPILE_DISABLE"] = "1"  # bitsandbytes compiles some functions at their first call

import bitsandbytes.functional as bnb  # noqa: E402, installed by scripts/setup.sh into a folder of its own
from safetensors.torch import load_file, save_file  # noqa: E402


def fp8_config(**changes) -> dict:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]} | changes


def nf4_config(is_double: bool) -> dict:
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_use_double_quant": is_double, "llm_int8_skip_modules": None}


def fp8(name: str, weight: torch.Tensor, scale_dtype=torch.float32) -> tuple[dict, torch.Tensor]:
    """Quantises a weight with a scale for 128 x 128 elements. Returns the tensors of a file, and the weight in bf16 that they stand for."""
    rows, columns = weight.shape
    grid = (-(-rows // 128), -(-columns // 128))
    padded = torch.nn.functional.pad(weight.float(), (0, grid[1] * 128 - columns, 0, grid[0] * 128 - rows))
    # A factor, so that the largest codes differ, also if the scales are rounded to bf16.
    scales = (padded.view(grid[0], 128, grid[1], 128).abs().amax((1, 3)) / (200 + 200 * torch.rand(grid))).to(scale_dtype)
    each = scales.float().repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
    codes = (weight.float() / each).to(torch.float8_e4m3fn)
    return {name: codes, f"{name}_scale_inv": scales}, (codes.float() * each).bfloat16()


def fp8_with_one_scale(name: str, weight: torch.Tensor) -> tuple[dict, torch.Tensor]:
    """The same with a scale for the whole weight, and a scale of the activations, which is not used."""
    scale = (weight.float().abs().max() / 300).bfloat16()
    codes = (weight.float() / scale.float()).to(torch.float8_e4m3fn)
    tensors = {name: codes, f"{name}_scale_inv": scale, name.replace(".weight", ".activation_scale"): torch.ones((), dtype=torch.bfloat16)}
    return tensors, (codes.float() * scale.float()).bfloat16()


def nf4(name: str, weight: torch.Tensor, is_double: bool) -> tuple[dict, torch.Tensor]:
    """Lets bitsandbytes quantise a weight. The values are those of the definition: dequantize_4bit() of version 0.50.2 returns others on CPUs
    with AVX-512 if the length of a row is a multiple of 16 and not of 64."""
    codes, state = bnb.quantize_4bit(weight.bfloat16(), blocksize=64, quant_type="nf4", compress_statistics=is_double)
    tensors = {name: codes} | {f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}
    scales = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset if is_double else state.absmax
    halves = torch.stack([codes >> 4, codes & 15], -1).view(-1)[:weight.numel()]
    values = state.code[halves.long()] * scales.repeat_interleave(64)[:weight.numel()]
    return tensors, values.bfloat16().view(weight.shape)


def is_linear(name: str) -> bool:
    return name.endswith("proj.weight")


def quantise_model(folder: Path, quantization: dict, quantise, is_quantised=is_linear) -> dict:
    """Quantises weights of a model that has one file. Returns the values of its tensors after that."""
    file, config_file = folder / "model.safetensors", folder / "config.json"
    tensors = load_file(file)
    values = dict(tensors)
    for name in filter(is_quantised, list(values)):
        stored, values[name] = quantise(name, tensors.pop(name))
        tensors |= stored
    assert len(tensors) > len(values)
    save_file({name: value.contiguous() for name, value in tensors.items()}, file, metadata={"format": "pt"})
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"quantization_config": quantization}))
    return values
