"""Compares our layers with adapters with peft, on random small models with random adapters that peft made.

    lora_parity_test.py MODEL_VALUES [COUNT] [FIRST_SEED]

In fp32 the logits, the loss and the gradient of each tensor of the adapter must agree, and so must the merged model. The adapter that we
write must have the bits of the one that was read. Experts with pairs of their own, which peft stacks in another way, are compared with
autograd through the weights W + s B A.
"""

import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from distances import distances
from parity_test import InFp64, experts_per_token, farthest_fp32, logits_by_document, make_case, run
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch.func import functional_call

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "qwen3_moe", "qwen3_5_text", "deepseek_v3", "gemma4_text")
LIMIT = 1e-5
LIMIT_OF_EXPERTS = 1e-4
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
LATENT_ATTENTION = ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
PATTERNS = {"qwen3_5_text": r".*\.linear_attn\.in_proj_(qkv|a|b)", "deepseek_v3": r".*\.self_attn\.kv_(a_proj_with_mqa|b_proj)"}
WITH_EXPERTS = ("qwen3_moe", "deepseek_v3")  # instead of an MLP
PER_LAYER_INPUT = ["per_layer_input_gate", "per_layer_projection"]
DELTA_NET = ["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"]


def lora_config(choose: random.Random, family: str, config, ranks: tuple) -> LoraConfig:
    is_tied = config.tie_word_embeddings
    linears = ATTENTION + ([] if family in WITH_EXPERTS else MLP) + (DELTA_NET if family == "qwen3_5_text" else [])
    if family == "deepseek_v3":
        linears = LATENT_ATTENTION + (["q_a_proj", "q_b_proj"] if config.q_lora_rank else ["q_proj"])
    if family == "gemma4_text":
        linears = ATTENTION[:2] + ([] if config.attention_k_eq_v else ["v_proj"]) + ["o_proj"] + MLP
        linears += PER_LAYER_INPUT if config.hidden_size_per_layer_input else []
    pattern = PATTERNS.get(family, r".*\.self_attn\.(q|v)_proj")
    return LoraConfig(r=choose.choice(ranks), lora_alpha=choose.choice([1, 8, 20]), use_rslora=choose.random() < 0.3,
                      use_dora=choose.random() < 0.4, task_type="CAUSAL_LM",
                      target_modules=choose.choice([linears, choose.sample(linears, 2), pattern]),
                      modules_to_save=choose.choice([None, None, ["norm"], ["input_layernorm", "embed_tokens"] if not is_tied else None]))


def make_adapter(choose: random.Random, family: str, model, folder: Path, ranks: tuple = (1, 3, 8)):
    """Returns the model with a random adapter, and writes the adapter to folder/adapter. bf16 represents its values exactly."""
    adapted = get_peft_model(model, lora_config(choose, family, model.config, ranks)).eval()
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)  # B starts at zero
                parameter.copy_(parameter.to(torch.bfloat16))
    adapted.save_pretrained(folder / "adapter")
    return adapted


def values_of(model, inputs: dict) -> dict:
    results = run(model, inputs)
    model.zero_grad()
    sum(value for name, value in results.items() if name != "logits").backward()
    values = {name: value.detach().float() for name, value in results.items()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            short = name.replace(".modules_to_save.default", "").replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector").replace(".default", "")
            values[short] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return values


def make_expert_adapter(choose: random.Random, model, folder: Path, ranks: tuple = (1, 2, 4)):
    """Writes an adapter with a pair for each expert, as in files of transformers 4; bf16 represents its values exactly. Returns the tensors and the scale."""
    rank, alpha = choose.choice(ranks), choose.choice([2.0, 8.0])
    config = model.config
    tensors = {}
    for layer in range(config.num_hidden_layers):
        has_experts = hasattr(model.model.layers[layer].mlp, "experts")
        inner = config.moe_intermediate_size if has_experts else config.intermediate_size
        for module in [f"experts.{expert}." for expert in range(config.num_experts)] if has_experts else [""]:
            for name in MLP:
                into, out = (inner, config.hidden_size) if name == "down_proj" else (config.hidden_size, inner)
                start = f"base_model.model.model.layers.{layer}.mlp.{module}{name}"
                for matrix, shape in (("A", (rank, into)), ("B", (out, rank))):
                    tensors[f"{start}.lora_{matrix}.weight"] = (torch.randn(shape) * 0.2).to(torch.bfloat16).float()
    (folder / "adapter").mkdir()
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    (folder / "adapter" / "adapter_config.json").write_text(
        f'{{"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": null, "r": {rank}, "lora_alpha": {alpha},'
        f' "target_modules": ["gate_proj", "up_proj", "down_proj"]}}')
    return tensors, alpha / rank


class Merged(torch.nn.Module):
    """The model with its experts' weights replaced by W + s B A, for logits_by_document()."""

    def __init__(self, model, tensors: dict, scale: float):
        super().__init__()
        self.model, self.tensors, self.scale = model, tensors, scale

    def forward(self, ids, **options):
        def update(layer: int, module: str) -> torch.Tensor:
            start = f"base_model.model.model.layers.{layer}.mlp.{module}"
            return self.scale * self.tensors[f"{start}.lora_B.weight"] @ self.tensors[f"{start}.lora_A.weight"]

        weights = dict(self.model.named_parameters())
        config = self.model.config
        for layer in range(config.num_hidden_layers):
            if not hasattr(self.model.model.layers[layer].mlp, "experts"):
                for name in MLP:
                    weights[f"model.layers.{layer}.mlp.{name}.weight"] = weights[f"model.layers.{layer}.mlp.{name}.weight"] + update(layer, name)
                continue
            start = f"model.layers.{layer}.mlp.experts."
            experts = range(config.num_experts)
            weights[start + "gate_up_proj"] = weights[start + "gate_up_proj"] + torch.stack(
                [torch.cat([update(layer, f"experts.{e}.gate_proj"), update(layer, f"experts.{e}.up_proj")]) for e in experts])
            weights[start + "down_proj"] = weights[start + "down_proj"] + torch.stack(
                [update(layer, f"experts.{e}.down_proj") for e in experts])
        return functional_call(self.model, weights, (ids,), options)


def expert_values(model, tensors: dict, scale: float, inputs: dict) -> dict:
    for tensor in tensors.values():
        tensor.requires_grad_(True)
    model.requires_grad_(False)
    results = run(Merged(model, tensors, scale), inputs)
    sum(value for name, value in results.items() if name != "logits").backward()
    gradients = {name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for name, tensor in tensors.items()}
    return gradients | {name: value.detach().float() for name, value in results.items()}


def check_case(name: str, folder: Path, model, expected: dict, limit: float, values) -> list[str]:
    """values(dtype) returns the values of `model` with its adapter in that dtype."""
    faults = []
    ours = load_file(folder / "values-float32.safetensors")
    if ours.keys() != expected.keys():
        return [f"{name}: tensors differ: {sorted(ours.keys() ^ expected.keys())}"]
    worst = max((value, key) for key, value in distances(ours, expected).items())
    if not worst[0] <= limit:
        # A model may amplify rounding more than that. Then our values may be twice as far from fp64 as those of peft in fp32.
        with InFp64():
            exact = values(torch.float64)
        theirs_fp32, ours_fp32 = farthest_fp32(model, lambda: values(torch.float32), exact), distances(ours, exact)
        # If a gradient cancels out, such as that of keys in sequences of one token, its rounding is compared with all gradients together.
        whole = sum(value.double().square().sum().item() for key, value in exact.items() if "lora" in key) ** 0.5
        for key in theirs_fp32:
            if not any(value.abs().max() > 0 for name, value in exact.items() if name.startswith(key)):
                ours_fp32[key] /= whole
        faults += [f"{name}: {key} is {value:.2e} from fp64, peft's fp32 {theirs_fp32[key]:.2e}"
                   for key, value in ours_fp32.items() if not value <= max(limit, 2 * theirs_fp32[key])]
    given, written = load_file(folder / "adapter" / "adapter_model.safetensors"), load_file(folder / "adapter-float32" / "adapter_model.safetensors")
    wrong = sorted(given.keys() ^ written.keys()) + [key for key in given if key in written and not torch.equal(given[key], written[key])]
    if wrong:
        faults.append(f"{name}: the adapter was written with other tensors than it was read with: {wrong}")
    print(f"{name}: {worst[0]:.1e} ({worst[1]}), {len(given)} tensors")
    return faults


def check_merged(name: str, folder: Path, adapted, limit: float) -> list[str]:
    """Compares our merged weights with those of peft."""
    theirs = {key: value for key, value in adapted.merge_and_unload().state_dict().items() if ".experts." not in key}
    ours = load_file(folder / "exported-float32" / "model.safetensors")
    worst = max(((ours[key] - theirs[key]).norm() / theirs[key].norm().clamp_min(1e-12)).item() for key in ours if key in theirs)
    return [] if worst <= limit else [f"{name}: the merged weights differ by {worst:.2e}"]


def check_reads_back(name: str, folder: Path, inputs: dict, expected: dict, limit: float) -> list[str]:
    """Checks that peft reads the adapter that we wrote."""
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if experts_per_token(base.config):
        base.config._experts_implementation = "eager"
    adapted = PeftModel.from_pretrained(base, folder / "adapter-float32").eval()
    with torch.no_grad():
        logits = logits_by_document(adapted, inputs).float()
    distance = ((logits - expected["logits"]).norm() / expected["logits"].norm()).item()
    return [] if distance <= limit else [f"{name}: peft computes other logits with the adapter that we wrote: {distance:.2e}"]


def check(program: str, family: str, seed: int) -> list[str]:
    name = f"{family} {seed}"
    choose = random.Random(f"adapter {name}")
    with tempfile.TemporaryDirectory(prefix="rp-lora-") as scratch:
        folder = Path(scratch)
        model, inputs = make_case(family, seed, folder)
        has_experts = family == "qwen3_moe" and seed % 2 == 0
        limit = LIMIT_OF_EXPERTS if experts_per_token(model.config) else LIMIT
        if experts_per_token(model.config):
            model.config._experts_implementation = "eager"  # grouped products do not support fp64
        if has_experts:
            tensors, scale = make_expert_adapter(choose, model, folder)
            values = lambda dtype: expert_values(model.to(dtype), {key: tensor.detach().to(dtype) for key, tensor in tensors.items()}, scale, inputs)
        else:
            adapted = make_adapter(choose, family, model, folder)
            values = lambda dtype: values_of(adapted.to(dtype), inputs)
        expected = values(torch.float32)
        subprocess.run([program, "float32", str(folder)], check=True)
        faults = check_case(name, folder, model if has_experts else adapted, expected, limit, values)
        if not has_experts:
            faults += check_merged(name, folder, adapted.to(torch.float32), limit)
        # In this family peft expects these names to belong to experts, and does not find them in layers without experts.
        if has_experts and not all(hasattr(layer.mlp, "experts") for layer in model.model.layers):
            return faults
        return faults + check_reads_back(name, folder, inputs, expected, limit)


def main() -> int:
    program = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    faults = [fault for family in FAMILIES for seed in range(first, first + count) for fault in check(program, family, seed)]
    print("\n".join(faults) or f"{count} adapters each agree: {', '.join(FAMILIES)}")
    return 1 if faults or count < 1 else 0


if __name__ == "__main__":
    sys.exit(main())
