#!/usr/bin/env python3
"""Makes a Llama of random bf16 weights, of the size of a known model, and a token file for it. Needs nothing but Python.

    tools/make_random_model.py --shape 8b --layers 16 --sequence-length 2048 --output DIR

DIR gets config.json, shards in the safetensors format, and data.tokens. The weights are normally distributed with a deviation of 0.02; they
repeat one random sequence whose length is prime. They are suitable for measuring speed and memory, but the model is useless otherwise.
"""

import argparse
import json
import random
import struct
import sys
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from token_file import TokenFileWriter  # noqa: E402

# Sizes of Qwen3 models, without their norms of queries and keys. `signals` is small, for measuring
# transfers between workers.
SHAPES = {
    "8b": dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
               head_dim=128, vocab_size=151936, tie_word_embeddings=False),
    "1.7b": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                 head_dim=128, vocab_size=151936, tie_word_embeddings=True),
    "signals": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=4,
                    head_dim=128, vocab_size=8192, tie_word_embeddings=True),
    "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=16, vocab_size=320, tie_word_embeddings=True),
}
STRETCH = 1048573  # a prime, so that no two rows of a matrix are equal
PIECE_BYTES = 64 << 20


def config(shape: str, layers: int | None = None) -> dict:
    values = dict(SHAPES[shape])
    if layers:
        values["num_hidden_layers"] = layers
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0, "max_position_embeddings": 1 << 20, "attention_bias": False, "mlp_bias": False,
            "torch_dtype": "bfloat16", **values}


def shards(values: dict) -> list[dict[str, tuple[int, ...]]]:
    """Returns names and shapes of the weights, file by file: the embeddings, then each layer."""
    hidden, inner, head = values["hidden_size"], values["intermediate_size"], values["head_dim"]
    queries, keys = values["num_attention_heads"] * head, values["num_key_value_heads"] * head
    outer = {"model.embed_tokens.weight": (values["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not values["tie_word_embeddings"]:
        outer["lm_head.weight"] = (values["vocab_size"], hidden)
    parts = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_proj": (queries, hidden),
             "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
             "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    return [outer] + [{f"model.layers.{i}.{name}.weight": shape for name, shape in parts.items()}
                      for i in range(values["num_hidden_layers"])]


def count(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def num_parameters(values: dict) -> int:
    return sum(count(shape) for tensors in shards(values) for shape in tensors.values())


def random_stretch() -> bytes:
    """Returns bf16 values as bytes: several copies of the random sequence."""
    choose = random.Random(1)
    raw = array("f", (choose.gauss(0, 0.02) for _ in range(STRETCH))).tobytes()
    values = bytearray(2 * STRETCH)
    values[0::2], values[1::2] = raw[2::4], raw[3::4]  # the upper half of each fp32 number: rounded towards zero
    return bytes(values) * (PIECE_BYTES // len(values))


def write_tensor(file, bytes_left: int, stretch: bytes) -> None:
    if not stretch:
        file.truncate(file.seek(bytes_left, 1))
    while stretch and bytes_left > 0:
        file.write(memoryview(stretch)[:min(bytes_left, len(stretch))])
        bytes_left -= min(bytes_left, len(stretch))


def write_shard(path: Path, tensors: dict[str, tuple[int, ...]], stretch: bytes) -> None:
    entries, offset = {}, 0
    for name, shape in tensors.items():
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + 2 * count(shape)]}
        offset += 2 * count(shape)
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name, shape in tensors.items():
            if name.endswith("norm.weight"):
                file.write(b"\x80\x3f" * count(shape))  # 1.0
            else:
                write_tensor(file, 2 * count(shape), stretch)


def write_model(directory: Path, values: dict, is_zero: bool = False) -> None:
    """Writes the model. `is_zero`: all weights are zeros, which need neither time nor disk space,
    for measurements that depend only on sizes."""
    directory.mkdir(parents=True, exist_ok=True)
    stretch = b"" if is_zero else random_stretch()
    files = shards(values)
    weight_map = {}
    for i, tensors in enumerate(files, 1):
        name = f"model-{i:05}-of-{len(files):05}.safetensors"
        write_shard(directory / name, tensors, stretch)
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 2 * num_parameters(values)}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps(values, indent=1))  # last: the folder is then complete


def write_data(path: Path, vocabulary: int, sequence_length: int, num_sequences: int) -> None:
    """Writes documents of one whole sequence each, so that there is no padding."""
    choose = random.Random(2)
    file = TokenFileWriter(vocabulary=vocabulary, eos_token=None, kind="text")
    for _ in range(num_sequences):
        file.add(choose.choices(range(vocabulary), k=sequence_length), [1] * sequence_length)
    file.write(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, choices=list(SHAPES))
    parser.add_argument("--layers", type=int, help="instead of the shape's own number")
    parser.add_argument("--sequence-length", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    values = config(arguments.shape, arguments.layers)
    write_model(arguments.output, values)
    write_data(arguments.output / "data.tokens", values["vocab_size"], arguments.sequence_length, arguments.sequences)
    print(f"{num_parameters(values):,} parameters, {2 * num_parameters(values) / 2**30:.1f} GiB in {arguments.output}; trained they "
          f"take {16 * num_parameters(values) / 2**30:.0f} GiB of host memory and what activations need")


if __name__ == "__main__":
    main()
