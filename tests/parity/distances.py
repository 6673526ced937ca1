"""Computes how far values of model_values are from expected ones. Needs only torch, so that it runs where transformers is not installed."""

import json
import struct
from pathlib import Path

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}

LOSSES = ("loss", "z_loss", "aux_loss")


def read_safetensors(path: Path) -> dict:
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        flat = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=8 + length + begin) if end > begin else torch.empty(0, dtype=torch.uint8)
        tensors[name] = flat.clone().view(DTYPES[info["dtype"]]).view(info["shape"])
    return tensors


def distances(ours: dict, theirs: dict) -> dict:
    """Returns norm-wise relative distances by parameter. A bias counts together with its weight: without a rotation, the gradients of
    the keys' biases cancel out, and only rounding remains of them."""
    parts = {}
    for key, value in theirs.items():
        name = key.removesuffix(".weight").removesuffix(".bias")
        difference, size = parts.get(name, (0.0, 0.0))
        parts[name] = (difference + (ours[key].double() - value.double()).square().sum().item(), size + value.double().square().sum().item())
    return {name: (difference / size if size > 1e-24 else difference) ** 0.5 for name, (difference, size) in parts.items()}


def summary(of_parameters: dict) -> dict:
    """Returns the distance of the logits, and that of all gradients together. In such small models a single number or tensor may be right by chance."""
    gradients = [value for key, value in of_parameters.items() if key != "logits" and key not in LOSSES]
    return {"logits": of_parameters["logits"], "gradients": sum(value ** 2 for value in gradients) ** 0.5}
