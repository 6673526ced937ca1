"""A Llama as nn.Sequential of plain PyTorch, for the programs that `train` is compared with: python_roundpipe.py, fsdp2_offload.py.
Sizes are those of tools/make_random_model.py."""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import make_random_model  # noqa: E402


STRETCH = 16777259  # a prime: no two rows of a matrix are equal


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, hidden))

    def forward(self, ids_bt):
        return F.embedding(ids_bt, self.weight)


class DecoderLayer(nn.Module):
    def __init__(self, values: dict):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = values["num_attention_heads"], values["num_key_value_heads"], values["head_dim"]
        hidden, inner = values["hidden_size"], values["intermediate_size"]
        self.theta = values["rope_theta"]
        self.attention_norm = nn.RMSNorm(hidden, eps=values["rms_norm_eps"])
        self.q = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, eps=values["rms_norm_eps"])
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def rotated(self, x_bhtd):
        length, half = x_bhtd.shape[2], self.head_dim // 2
        frequencies = self.theta ** (-torch.arange(half, device=x_bhtd.device, dtype=torch.float32) / half)
        angles = torch.arange(length, device=x_bhtd.device, dtype=torch.float32)[:, None] * frequencies
        cosine, sine = angles.cos().to(x_bhtd.dtype), angles.sin().to(x_bhtd.dtype)
        a, b = x_bhtd.chunk(2, dim=-1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)

    def forward(self, x_btd):
        batch, length, _ = x_btd.shape

        def heads(y, number):
            return y.view(batch, length, number, self.head_dim).transpose(1, 2)

        y = self.attention_norm(x_btd)
        q, k, v = heads(self.q(y), self.heads), heads(self.k(y), self.kv_heads), heads(self.v(y), self.kv_heads)
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True, enable_gqa=True)
        x_btd = x_btd + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        y = self.mlp_norm(x_btd)
        return x_btd + self.down(F.silu(self.gate(y)) * self.up(y))


class Head(nn.Module):
    """Computes the logits. `weight` is that of the embedding if the two are tied."""

    def __init__(self, values: dict, weight: nn.Parameter | None):
        super().__init__()
        self.norm = nn.RMSNorm(values["hidden_size"], eps=values["rms_norm_eps"])
        self.weight = weight if weight is not None else nn.Parameter(torch.empty(values["vocab_size"], values["hidden_size"]))

    def forward(self, x_btd):
        return F.linear(self.norm(x_btd), self.weight)


def build(shape: str, layers: int) -> nn.Sequential:
    """Returns a model with random bf16 weights on the CPU."""
    values = make_random_model.config(shape, layers)
    torch.set_default_dtype(torch.bfloat16)
    embedding = Embedding(values["vocab_size"], values["hidden_size"])
    head = Head(values, embedding.weight if values["tie_word_embeddings"] else None)
    model = nn.Sequential(embedding, *(DecoderLayer(values) for _ in range(values["num_hidden_layers"])), head)
    torch.set_default_dtype(torch.float32)
    # Repeats one random stretch of a prime number of values, since billions of values drawn one by one take minutes.
    stretch = torch.empty(min(STRETCH, sum(parameter.numel() for parameter in model.parameters())), dtype=torch.bfloat16)
    stretch.normal_(std=0.02, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1)
            else:
                for piece in parameter.view(-1).split(stretch.numel()):
                    piece.copy_(stretch[:piece.numel()])
    return model


def loss_of(logits_btv, labels_bt):
    """Returns the sum over the tokens."""
    return F.cross_entropy(logits_btv.flatten(0, 1).float(), labels_bt.flatten(), reduction="sum")


def batch(shape: str, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs and labels."""
    ids = torch.randint(0, make_random_model.SHAPES[shape]["vocab_size"], (size, length + 1), generator=torch.Generator().manual_seed(2))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, choices=list(make_random_model.SHAPES))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--sequence-length", type=int, default=2048)
    parser.add_argument("--num-microbatches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5, help="the first two do not count")
    return parser


def need_gpu(program: str) -> None:
    """Exits with code 69 if there is no GPU."""
    if not torch.cuda.is_available():
        print(f"{program}: no CUDA device: torch finds none; look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES", file=sys.stderr)
        sys.exit(69)
