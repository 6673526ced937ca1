"""Compares our layers with those of the installed transformers, on random small models with random inputs.

    parity_test.py MODEL_VALUES FAMILY|all [COUNT] [FIRST_SEED]

Each case is made from a seed, which determines the configuration, the weights, and a batch; some batches have several documents per row. In fp32
the logits, the losses (cross entropy, z-loss, auxiliary loss of experts) and every gradient must agree. In bf16 our values may be at most twice as
far from transformers' fp32 as its own bf16 is, and over 20 models or more their distance may on average be 1.1 times as large. (In fp32 they may be
at most twice as far from fp64 as transformers' fp32 is, if that is more than the limit; bf16 is then compared with fp64, too. A single token may
dominate the rounding of a model with linear attention, whose results are normalised by head, or of Gemma 4, whose scores are those of normalised
heads without a factor; there the largest of five distances of transformers counts if the first one is too small.) transformers computes one document at a time, which is the meaning of packing. The weights are bf16 values in files of fp32. If they are
loaded and exported in either dtype, the files must be the same, except that packed experts become bf16.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from distances import distances, summary
from families import FAMILIES

FP32_LIMIT = 1e-5
FP32_LIMIT_OF_EXPERTS = 1e-4
BF16_FACTOR = 2.0
BF16_MEAN = 1.1  # the geometric mean over this many models or more
MEAN_OF = 20
# In bf16 a router may choose another expert if the relative lead of the last chosen expert over the next one is below this.
UNDECIDED = 0.05


def random_documents(choose: random.Random, rows: int, length: int) -> torch.Tensor:
    """Returns the lengths of each row's documents, followed by zeros. The remaining positions of a row form one more document."""
    lengths = []
    for _ in range(rows):
        row, left = [], length
        for _ in range(4):
            row.append(choose.randint(0, left) if choose.random() < 0.8 else 0)
            left -= row[-1]
        lengths.append(sorted(row, key=lambda n: n == 0))
    return torch.tensor(lengths)


def as_they_are(_choose: random.Random, values: dict) -> dict:
    return values


def experts_per_token(text) -> int:
    """Returns 0 for a model without experts."""
    return getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", None) or 0


def make_case(family: str, seed: int, folder: Path, sizes=as_they_are, lengths: tuple = (1, 5, 16, 33)):
    """Writes a model and its inputs to the folder, and returns both. `sizes` may change the configuration."""
    choose = random.Random(f"{family} {seed}")
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **sizes(choose, FAMILIES[family](choose)))
    is_wrapper = hasattr(config, "text_config")  # a multimodal model, whose text part is used
    text = config.get_text_config()
    if experts_per_token(text):
        # transformers' grouped products support only rows of a multiple of 16 bytes. Otherwise it adds in bf16, expert by expert.
        inner = text.moe_intermediate_size if hasattr(text, "moe_intermediate_size") else text.intermediate_size
        whole = text.hidden_size % 8 == 0 and inner % 8 == 0
        text._experts_implementation = "grouped_mm" if whole else "eager"
    auto_class = AutoModelForImageTextToText if is_wrapper else AutoModelForCausalLM
    model = auto_class.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    model.experts_implementation = getattr(text, "_experts_implementation", None)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms and biases are initially ones and zeros, with which many errors would not be noticed.
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            # In bf16 both sides compute with the same weights.
            parameter.copy_(parameter.to(torch.bfloat16))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer), alpha=0.1)  # stays fp32
            if name.endswith("layer_scalar"):
                buffer.copy_((buffer + 0.2 * torch.randn_like(buffer)).to(torch.bfloat16))
    model.save_pretrained(folder)
    if family == "gpt_oss":
        if config.hidden_size % 32 == config.intermediate_size % 32 == 0:
            save_packed(model, folder)
    elif any(".experts." in name for name, _ in model.named_parameters()) and choose.random() < 0.5:
        save_fused(model, folder)
    rows, length = choose.choice([1, 2, 3]), choose.choice(lengths)
    vocabulary = text.vocab_size
    ids = torch.randint(0, vocabulary, (rows, length))
    labels = torch.where(torch.rand(rows, length) < 0.2, -100, torch.randint(0, vocabulary, (rows, length)))
    labels[0, 0] = 0
    inputs = {"ids": ids, "labels": labels, "divisor": torch.tensor(float((labels != -100).sum()))}
    if choose.random() < 0.3:
        inputs["z_loss"] = torch.tensor(0.05)
    if choose.random() < 0.4:
        inputs["documents"] = random_documents(choose, rows, length)
    save_file(inputs, folder / "inputs.safetensors")
    return model, inputs


def causal_lm_of(model):
    """Returns the model itself, or the causal language model that it contains."""
    return next(module for module in model.modules() if isinstance(module, PreTrainedModel))


def routers_of(model) -> list:
    return [module for module in model.modules() if type(module).__name__.endswith(("TopkRouter", "TopKRouter", "TextRouter"))]


def with_weights_in(model, dtype: torch.dtype):
    """Converts the weights and returns the model. Its buffers are not converted: from_pretrained() also leaves the frequencies of RoPE in fp32,
    whereas model.to() would round them."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
        parameter.grad = None
    if model.experts_implementation:  # grouped products do not support fp64
        model.config.get_text_config()._experts_implementation = "eager" if dtype == torch.float64 else model.experts_implementation
    return model


def lengths_of_row(inputs: dict, row: int) -> list[int]:
    """Returns the lengths of the documents in a row, including the one that the remaining positions form."""
    lengths = [n for n in inputs["documents"][row].tolist() if n > 0] if "documents" in inputs else []
    return lengths + [n for n in [inputs["ids"].shape[1] - sum(lengths)] if n > 0]


def logits_by_document(model, inputs: dict) -> torch.Tensor:
    options = {"use_cache": False}
    if hasattr(causal_lm_of(model).config.get_text_config(), "output_router_logits"):
        options["output_router_logits"] = False  # otherwise it would compute the auxiliary loss of each document separately
    if "documents" not in inputs:
        return model(inputs["ids"], **options).logits
    rows = []
    for row, ids in enumerate(inputs["ids"]):
        parts = ids.split(lengths_of_row(inputs, row))
        rows.append(torch.cat([model(part[None], **options).logits[0] for part in parts]))
    return torch.stack(rows)


def save_fused(model, folder: Path):
    """Writes the weights again, with the layout that they have in memory. save_pretrained() splits a new model's experts."""
    shared = {name for name in model.state_dict() if name in (model._tied_weights_keys or {})} if model.config.tie_word_embeddings else set()
    save_file({name: value.contiguous() for name, value in model.state_dict().items() if name not in shared}, folder / "model.safetensors",
              metadata={"format": "pt"})


def packed_tensors(values: dict) -> list[str]:
    """Returns the names of the weights for which a file has blocks and scales."""
    return [name.removesuffix("_blocks") for name in values if name.endswith("_blocks")]


@torch.no_grad()
def save_packed(model, folder: Path):
    """Sets the weights of experts to random MXFP4 numbers, and writes them in the layout of OpenAI's files."""
    values = load_file(folder / "model.safetensors")
    for name in [name for name in values if ".experts." in name and not name.endswith("_bias")]:
        experts, into, out = values.pop(name).shape
        values[f"{name}_blocks"] = torch.randint(0, 256, (experts, out, into // 32, 16), dtype=torch.uint8)
        values[f"{name}_scales"] = torch.randint(120, 124, (experts, out, into // 32), dtype=torch.uint8)
        model.get_parameter(name).copy_(convert_moe_packed_tensors(values[f"{name}_blocks"], values[f"{name}_scales"]))
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def by_file_name(name: str, value: torch.Tensor, names: set) -> dict:
    """Returns a parameter's value under the names of a file, which has tensors of these `names`. In memory the experts of a layer are two
    parameters; a file may have three tensors for each expert. The text parts of multimodal models have other names in files; the other parts are
    not trained."""
    if any(each.startswith("model.language_model.") for each in names) and not name.startswith(("model.language_model.", "lm_head.")):
        return {}
    if any(each.startswith("language_model.") for each in names):
        is_text = name.startswith(("model.language_model.", "lm_head."))
        file_name = name.replace("model.language_model.", "language_model.model.").replace("lm_head.", "language_model.lm_head.")
        return {file_name: value} if is_text else {}
    start, dot, part = name.rpartition(".experts.")
    if not dot or name in names or f"{name}_blocks" in names:
        return {name: value}
    named = {}
    for expert, weight in enumerate(value):
        if part == "gate_up_proj":
            gate, up = weight.chunk(2)
            named |= {f"{start}.experts.{expert}.gate_proj.weight": gate, f"{start}.experts.{expert}.up_proj.weight": up}
        else:
            named[f"{start}.experts.{expert}.{part}.weight"] = weight
    return named


class RouterLogits:
    """Records the logits of each router, for all documents, in the forward passes of transformers' model inside a `with` block."""

    def __init__(self, model):
        self.logits = {router: [] for router in routers_of(model)}

    def __enter__(self):
        self.handles = [router.register_forward_hook(lambda router, _, outputs: self.logits[router].append(outputs[0])) for router in self.logits]
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    def auxiliary_loss(self, causal_lm) -> torch.Tensor:
        own = sys.modules[type(causal_lm).__module__]
        rows = tuple(torch.cat([part.flatten(0, -2) for part in parts]) for parts in self.logits.values())
        config = causal_lm.config.get_text_config()
        experts = getattr(config, "num_experts", None) or config.num_local_experts
        return own.load_balancing_loss_func(rows, experts, config.num_experts_per_tok) * config.router_aux_loss_coef


def run(model, inputs: dict) -> dict:
    """Returns the logits and the losses of causal_lm_of(model). The sum of the losses is trained."""
    causal_lm = causal_lm_of(model)
    with RouterLogits(model) as routers:
        logits = logits_by_document(model, inputs).to(torch.float64 if causal_lm.dtype == torch.float64 else torch.float32)
    labels = inputs["labels"].flatten()
    losses = {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100, reduction="sum") / inputs["divisor"]}
    if "z_loss" in inputs:
        log_sums = logits.flatten(0, 1)[labels != -100].logsumexp(-1)
        losses["z_loss"] = inputs["z_loss"] * log_sums.square().sum() / inputs["divisor"]
    if routers.logits and getattr(causal_lm.config.get_text_config(), "output_router_logits", False):
        losses["aux_loss"] = routers.auxiliary_loss(causal_lm)
    return {"logits": logits} | losses


def values_of(model, inputs: dict, names: set) -> dict:
    """Computes, with transformers, the values that model_values writes for files with tensors of these names."""
    model.zero_grad()
    values = run(model, inputs)
    sum(value for name, value in values.items() if name != "logits").backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        gradients |= by_file_name(name, torch.zeros_like(parameter) if parameter.grad is None else parameter.grad, names)
    gradients = {name: gradient.float() for name, gradient in gradients.items()}
    return gradients | {name: value.detach().float() for name, value in values.items()}


class InFp64(TorchFunctionMode):
    """Inside a `with` block code that asks for fp32, as norms and the delta rule of transformers do whatever the dtype of the model, gets fp64."""

    def __torch_function__(self, function, _types, arguments=(), keywords=None):
        if function is torch.Tensor.float:
            return arguments[0].double()
        widen = lambda value: torch.float64 if value is torch.float32 else value
        return function(*map(widen, arguments), **{key: widen(value) for key, value in (keywords or {}).items()})


class RouterMargin:
    """Records the relative lead of the last chosen expert in the forward passes of transformers' model inside a `with` block: `leads` by router and
    token, and the smallest of all in `least`."""

    def __init__(self, model):
        self.routers = routers_of(model)
        self.leads = []
        self.least = 1.0

    def __enter__(self):
        self.handles = [router.register_forward_hook(self.look) for router in self.routers]
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    def look(self, router, _inputs, outputs):
        logits = outputs[0].detach().float()
        if hasattr(router, "e_score_correction_bias"):
            scores = logits.sigmoid() + router.e_score_correction_bias
            by_group = scores.unflatten(-1, (router.num_group, -1))
            of_groups = by_group.topk(2, dim=-1).values.sum(-1)
            self.add_lead(of_groups, router.topk_group)
            chosen = torch.zeros_like(of_groups).scatter_(1, of_groups.topk(router.topk_group).indices, 1).bool()
            self.add_lead(by_group.masked_fill(~chosen.unsqueeze(-1), -torch.inf).flatten(1), router.top_k)
        elif hasattr(router, "per_expert_scale"):  # its first output are probabilities
            self.add_lead(logits, router.config.top_k_experts)
        else:
            self.add_lead(logits.softmax(-1), router.top_k)

    def add_lead(self, scores: torch.Tensor, count: int):
        """`count`: of the scores of a token, how many are chosen."""
        if count < scores.shape[-1]:
            last, first = scores.sort(-1, descending=True).values[:, count - 1:count + 1].unbind(-1)
            self.leads.append((last - first) / last.abs())
            self.least = min(self.least, self.leads[-1].min().item())


def check_export(name: str, folder: Path) -> list[str]:
    faults = []
    source = load_file(folder / "model.safetensors")
    packed = packed_tensors(source)
    for key in packed:
        source[key] = convert_moe_packed_tensors(source.pop(f"{key}_blocks"), source.pop(f"{key}_scales"))
    for dtype in ("float32", "bfloat16"):
        exported = load_file(folder / f"exported-{dtype}" / "model.safetensors")
        wrong = sorted(source.keys() ^ exported.keys())
        wrong += [key for key, value in source.items() if key in exported and not (
            value.dtype == exported[key].dtype and torch.equal(value.view(torch.uint8), exported[key].view(torch.uint8)))]
        if wrong:
            faults.append(f"{name}: exported in {dtype}, these tensors are not the source's: {wrong}")
        if packed:
            config = json.loads((folder / "config.json").read_text())
            del config["quantization_config"]
            if (folder / f"exported-{dtype}" / "config.json").read_text() != json.dumps(config, indent=2, ensure_ascii=False) + "\n":
                faults.append(f"{name}: exported in {dtype}, config.json is not the source's without quantization_config")
            continue
        for file in ("config.json", "model.safetensors"):
            if (folder / file).read_bytes() != (folder / f"exported-{dtype}" / file).read_bytes():
                faults.append(f"{name}: exported in {dtype}, {file} is not the source's")
    return faults


def drawn(model, compute, change: float):
    """Yields compute() for the model and for four models whose weights differ from it by about this fraction, because a single result may be right by
    chance."""
    generator = torch.Generator().manual_seed(1)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    for draw in range(5):
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(weight * (1 + change * torch.randn(weight.shape, generator=generator)) if draw else weight)
        yield compute()
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)


def largest(of_draws) -> dict:
    found = {}
    for of_draw in of_draws:
        for key, distance in of_draw.items():
            found[key] = max(found.get(key, 0.0), distance)
    return found


def farthest_fp32(model, compute, exact: dict) -> dict:
    """Returns, for each parameter, the largest distance of transformers' fp32 from fp64, over models that differ in the last bit of their weights."""
    return largest(distances(values, exact) for values in drawn(with_weights_in(model, torch.float32), compute, 2.0 ** -24))


def farthest_bf16(model, compute, exact: dict) -> dict:
    """Returns the largest distances of transformers' bf16, over models of whose weights one in 20 differs in its last bit."""
    return largest(summary(distances(values, exact)) for values in drawn(with_weights_in(model, torch.bfloat16), compute, 2.0 ** -10))


def check_case(name: str, folder: Path, model, inputs: dict, all_ratios: list[dict]) -> list[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
    with RouterMargin(model) as margin:
        expected = values_of(model, inputs, names)
    compute = lambda: values_of(model, inputs, names)
    ours = load_file(folder / "values-float32.safetensors")
    faults = []
    if ours.keys() != expected.keys():
        return [f"{name}: tensors differ: {sorted(ours.keys() ^ expected.keys())}"]
    worst = max((value, key) for key, value in distances(ours, expected).items())
    limit = FP32_LIMIT_OF_EXPERTS if margin.routers else FP32_LIMIT
    exact = expected
    if not worst[0] <= limit:
        # A model may amplify rounding more than that. Then our values may be twice as far from fp64 as those of transformers in fp32.
        with InFp64():
            exact = values_of(with_weights_in(model, torch.float64), inputs, names)
        theirs_fp32 = farthest_fp32(model, compute, exact)
        ours_fp32 = distances(ours, exact)
        faults += [f"{name}: {key} is {value:.2e} from fp64, transformers' fp32 {theirs_fp32[key]:.2e}"
                   for key, value in ours_fp32.items() if not value <= max(limit, 2 * theirs_fp32[key])]
    if margin.least < UNDECIDED:
        print(f"{name}: fp32 {worst[0]:.1e} ({worst[1]}); bf16 may choose other experts")
        return faults
    ours_bf16 = summary(distances(load_file(folder / "values-bfloat16.safetensors"), exact))
    theirs_bf16 = summary(distances(values_of(with_weights_in(model, torch.bfloat16), inputs, names), exact))
    text = model.config.get_text_config()
    amplifies = "linear_attention" in (getattr(text, "layer_types", None) or []) or text.model_type == "gemma4_text"
    if amplifies and not all(ours_bf16[what] <= BF16_FACTOR * theirs_bf16[what] for what in theirs_bf16):
        theirs_bf16 = farthest_bf16(model, compute, exact)
    ratios = {what: ours_bf16[what] / theirs_bf16[what] for what in theirs_bf16}
    all_ratios.append(ratios)
    for what, ratio in ratios.items():
        if not ratio <= BF16_FACTOR:
            faults.append(f"{name}: in bf16 the {what} are {ratio:.2f} times as far from fp32 as transformers'")
    print(f"{name}: fp32 {worst[0]:.1e} ({worst[1]}); bf16, of transformers' distances: logits {ratios['logits']:.2f}, "
          f"gradients {ratios['gradients']:.2f}")
    return faults


def check_family(program: str, family: str, seeds: range) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="rp-parity-") as scratch:
        cases = []
        for seed in seeds:
            folder = Path(scratch) / str(seed)
            cases.append((f"{family} {seed}", folder, *make_case(family, seed, folder)))
        for dtype in ("float32", "bfloat16"):
            subprocess.run([program, dtype, *[str(case[1]) for case in cases]], check=True)
        faults, ratios = [], []
        for case in cases:
            found = check_case(*case, ratios) + check_export(case[0], case[1])
            if found:
                print(json.dumps(json.loads((case[1] / "config.json").read_text())))
            faults += found
        for what in ratios[0] if len(ratios) >= MEAN_OF else ():
            mean = statistics.geometric_mean(each[what] for each in ratios)
            print(f"{family}: in bf16 the {what} are on average {mean:.2f} times as far as transformers'")
            if not mean <= BF16_MEAN:
                faults.append(f"{family}: in bf16 the {what} are on average {mean:.2f} times as far as transformers'")
    return faults


def main() -> int:
    program, family = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    families = list(FAMILIES) if family == "all" else [family]
    faults = [fault for each in families for fault in check_family(program, each, range(first, first + count))]
    print("\n".join(faults) or f"{count} models each agree: {', '.join(families)}")
    return 1 if faults or count < 1 else 0


if __name__ == "__main__":
    sys.exit(main())
