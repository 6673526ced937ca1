"""Makes the cases of the part `families` of scripts/gpu-check.sh: small models and the values that transformers and peft compute from them, for
machines with a GPU on which these packages are not installed.

    make_gpu_cases.py OUTPUT [--models 5] [--odd 2] [--adapters 1]

OUTPUT/GROUP/NAME contains a model in bf16, inputs.safetensors, adapter/ if there is an adapter, expected.safetensors with values in fp32, and
bf16.json with the distances of transformers' own bf16 from these values. The groups are: each family, with `--models` models whose sizes are multiples
of 8, or one if its models are multimodal; `adapters`, with `--adapters` of each kind; `odd_sizes`, with `--odd` models of each family of text models,
as tests/parity compares them on the CPU.

A case is made from the first suitable seed. Models are left out if they are large, if their gradients amplify the rounding of fp32, or if the
distance of transformers' own bf16 depends on the last bits of the weights. Models with routers get tokens for which the choice of experts is
clear, so that the rounding of bf16 does not change it.
"""

import argparse
import json
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

import lora_parity_test as lora
import parity_test
from distances import distances, summary
from families import FAMILIES

LENGTHS = (17, 33, 64, 100)
LENGTHS_OF_EXPERTS = (17, 33)  # short, because each token is found by a search
LEAST_LEAD = 4 * parity_test.UNDECIDED
CANDIDATES = 32  # for each token
FP32_DISTANCE = 1e-5  # the maximum distance of transformers' fp32 from its fp64, for each parameter
BF16_CHANCE = 1.5  # the largest of five distances, divided by the first one
MOST_ELEMENTS = 44_000  # in a model's files
MOST_SEEDS = 400  # for each case
# Family and kind of adapter: pairs of LoRA, linear layers with DoRA, or experts with pairs.
ADAPTERS = (("llama", "lora"), ("llama", "dora"), ("qwen2", "lora"), ("qwen3", "dora"), ("gemma3_text", "lora"), ("qwen3_moe", "lora"), ("qwen3_moe", "experts"))


class LeftOut(Exception):
    """The reason why no case can be made from a seed."""


def whole_sizes(choose: random.Random, values: dict) -> dict:
    """Makes all sizes multiples of 8, as in all models that are trained on GPUs, and uses sizes of heads that LibTorch's flash kernel supports."""
    if "text_config" in values:
        return values | {"text_config": whole_sizes(choose, values["text_config"])}
    heads = values["num_attention_heads"]
    changes = {"hidden_size": heads * choose.choice([8, 16] if heads > 3 else [32, 48]), "head_dim": choose.choice([16, 32, 64]),
               "intermediate_size": choose.choice([32, 64, 96]), "vocab_size": choose.choice([64, 72]), "max_position_embeddings": 128}
    if "kv_lora_rank" in values:
        del changes["head_dim"]
        changes |= {"q_lora_rank": values["q_lora_rank"] and 16, "kv_lora_rank": choose.choice([16, 32]), "qk_nope_head_dim": choose.choice([16, 24]),
                    "qk_rope_head_dim": choose.choice([8, 16]), "v_head_dim": choose.choice([16, 32, 48])}
    if "moe_intermediate_size" in values:
        changes["moe_intermediate_size"] = choose.choice([16, 32])
    if "global_head_dim" in values:  # the flash kernel does not support the largest
        changes |= {"global_head_dim": choose.choice([32, 64, 264]), "hidden_size_per_layer_input": values["hidden_size_per_layer_input"] and 16,
                    "vocab_size_per_layer_input": changes["vocab_size"]}
    if "linear_num_key_heads" in values:
        changes |= {"linear_num_key_heads": 1, "linear_num_value_heads": choose.choice([1, 2]), "linear_key_head_dim": 16, "linear_value_head_dim": 16}
    if "shared_expert_intermediate_size" in values:
        changes |= {"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": choose.choice([16, 32])}
    return values | changes


def lengths_of(family: str) -> tuple:
    values = FAMILIES[family](random.Random(1))
    has_experts = family.startswith("gemma4") or any("experts" in key for key in values.get("text_config", values))
    return LENGTHS_OF_EXPERTS if has_experts else LENGTHS


def check_size(folder: Path) -> dict:
    tensors = load_file(folder / "model.safetensors")
    if sum(tensor.numel() for tensor in tensors.values()) > MOST_ELEMENTS:
        raise LeftOut("too large")
    return tensors


def clear_tokens(model, length: int) -> torch.Tensor:
    """Returns one document. Each token is the first of several random ones for which the choice of every router is clear, given the tokens before it."""
    ids = torch.empty(0, dtype=torch.int64)
    for _ in range(length):
        candidates = torch.randint(0, model.config.get_text_config().vocab_size, (CANDIDATES, 1))
        tried = torch.cat([ids.expand(CANDIDATES, -1), candidates], 1)
        with torch.no_grad(), parity_test.RouterMargin(model) as margin:
            model(tried, use_cache=False)
        leads = torch.stack([lead.view(tried.shape)[:, -1] for lead in margin.leads]).amin(0)
        if leads.max() < LEAST_LEAD:
            raise LeftOut("undecided experts")
        ids = tried[(leads >= LEAST_LEAD).int().argmax()]
    return ids


def take_clear_tokens(folder: Path, model, inputs: dict) -> None:
    """Replaces the tokens of the inputs, in memory and in the file, if the model has experts."""
    with torch.no_grad(), parity_test.RouterMargin(model) as margin:
        parity_test.logits_by_document(model, inputs)
    if not parity_test.experts_per_token(model.config.get_text_config()):
        return
    if not margin.leads:
        raise LeftOut("experts without a choice")
    for row, ids in enumerate(inputs["ids"]):
        lengths = parity_test.lengths_of_row(inputs, row)
        inputs["ids"][row] = torch.cat([clear_tokens(model, length) for length in lengths])
    save_file(inputs, folder / "inputs.safetensors")


def write_case(folder: Path, model, values) -> None:
    """Writes the expected values, and the model in bf16. `values(dtype)` computes the values in a dtype. Raises LeftOut."""
    tensors = check_size(folder)
    with parity_test.RouterMargin(model) as margin:
        expected = values(torch.float32)
    if margin.least < parity_test.UNDECIDED:
        raise LeftOut("undecided experts")
    with parity_test.InFp64():
        exact = values(torch.float64)
    if max(distances(expected, exact).values()) > FP32_DISTANCE:
        raise LeftOut("amplified rounding")
    of_bf16 = summary(distances(values(torch.bfloat16), expected))
    farthest = parity_test.farthest_bf16(model, lambda: values(torch.bfloat16), expected)
    if any(farthest[what] > BF16_CHANCE * of_bf16[what] for what in of_bf16):
        raise LeftOut("bf16 right by chance")
    save_file({name: value.detach().clone().contiguous() for name, value in expected.items()}, folder / "expected.safetensors")
    (folder / "bf16.json").write_text(json.dumps(of_bf16))
    # bf16 represents the weights exactly, but not the corrections of routers, and needs half the space.
    is_exact = lambda name, tensor: tensor.is_floating_point() and not name.endswith("e_score_correction_bias")
    save_file({name: tensor.to(torch.bfloat16) if is_exact(name, tensor) else tensor for name, tensor in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})


def make_family_case(family: str, seed: int, folder: Path, has_documents: bool | None, sizes, lengths: tuple) -> None:
    model, inputs = parity_test.make_case(family, seed, folder, sizes, lengths)
    if has_documents not in (None, "documents" in inputs):
        raise LeftOut("documents")
    names = set(check_size(folder))
    if sizes is whole_sizes:
        take_clear_tokens(folder, model, inputs)
    write_case(folder, model, lambda dtype: parity_test.values_of(parity_test.with_weights_in(model, dtype), inputs, names))


def make_adapter_case(family: str, kind: str, seed: int, folder: Path, sizes, lengths: tuple, ranks: tuple) -> None:
    choose = random.Random(f"adapter {family} {seed}")
    model, inputs = parity_test.make_case(family, seed, folder, sizes, lengths)
    check_size(folder)
    if kind == "experts":
        take_clear_tokens(folder, model, inputs)
        model.experts_implementation = "eager"
        tensors, scale = lora.make_expert_adapter(choose, model, folder, ranks)
        write_case(folder, model, lambda dtype: lora.expert_values(
            parity_test.with_weights_in(model, dtype), {key: tensor.detach().to(dtype) for key, tensor in tensors.items()}, scale, inputs))
        return
    adapted = lora.make_adapter(choose, family, model, folder, ranks)
    if adapted.peft_config["default"].use_dora != (kind == "dora"):
        raise LeftOut("another kind of adapter")
    take_clear_tokens(folder, adapted, inputs)
    write_case(folder, adapted, lambda dtype: lora.values_of(parity_test.with_weights_in(adapted, dtype), inputs))


def first_that_fits(folder: Path, seeds, make, left_out: Counter) -> None:
    """Makes the case of the first suitable seed. The name of its folder ends with the seed."""
    for seed in seeds:
        case = folder.with_name(f"{folder.name}-{seed}")
        try:
            make(seed, case)
            return
        except LeftOut as reason:
            left_out[str(reason)] += 1
            shutil.rmtree(case, ignore_errors=True)
    raise SystemExit(f"make_gpu_cases.py: none of {MOST_SEEDS} seeds gives {folder}: {dict(left_out)}")


def make_all(output: Path, families: list[str], models: int, odd: int, adapters: int) -> None:
    def seeds(i: int) -> range:
        return range(i * 1000 + 1, i * 1000 + 1 + MOST_SEEDS)

    def make(group: str, name: str, i: int, one) -> None:
        left_out = Counter()
        first_that_fits(output / group / name, seeds(i), one, left_out)
        print(f"{group} {name}: left out {dict(left_out) or 'none'}", flush=True)

    for family in families:
        # The text part of a multimodal model has the mathematics of its own family, and other names.
        has_own_text = hasattr(transformers.AutoConfig.for_model(family), "text_config")
        for i in range(1 if has_own_text else models):
            # Every second model has packed documents.
            make(family, str(i), i, lambda seed, folder: make_family_case(family, seed, folder, i % 2 == 1, whole_sizes, lengths_of(family)))
        for i in range(0 if has_own_text else odd):
            make("odd_sizes", f"{family}-{i}", i, lambda seed, folder: make_family_case(family, seed, folder, None, parity_test.as_they_are, (1, 5, 16, 33)))
    for i in range(adapters):
        for family, kind in ADAPTERS:
            if family in families:
                make("adapters", f"{family}-{kind}-{i}", i,
                     lambda seed, folder: make_adapter_case(family, kind, seed, folder, whole_sizes, lengths_of(family), (8, 16)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--odd", type=int, default=2)
    parser.add_argument("--adapters", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="in place of what is there")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    arguments = parser.parse_args()
    if arguments.again:
        shutil.rmtree(arguments.output, ignore_errors=True)
    if arguments.output.exists():
        print(f"make_gpu_cases.py: {arguments.output} is there already", file=sys.stderr)
        return 74
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # about random settings of RoPE
    # The folder has another name until it is complete.
    unfinished = arguments.output.with_name(arguments.output.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    make_all(unfinished, arguments.families, arguments.models, arguments.odd, arguments.adapters)
    unfinished.rename(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
