"""Tests that models that we export, loaded by transformers, generate the same tokens as our layers.

    greedy_test.py MODEL_VALUES FAMILY|all [COUNT] [FIRST_SEED]

Each case is a random small model of parity_test.py and a few rows of tokens. Our layers continue them with complete forward passes, and
transformers' generate() with its cache of keys and values; both compute in fp32 and take the most likely token. If the two best logits of
transformers differ by less than 1e-4 of the largest one, rounding decides, and the rest of that row is not compared.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from parity_test import experts_per_token, make_case
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from families import FAMILIES

UNDECIDED = 1e-4
# Tokens per model, on average over each family. A test that compares nothing proves nothing.
LEAST_COMPARED = 10


def generated(folder: Path, ids: torch.Tensor, count: int):
    """Returns the tokens that follow each row, and the lead of the most likely token relative to the largest logit."""
    is_multimodal = hasattr(AutoConfig.from_pretrained(folder), "text_config")
    auto_class = AutoModelForImageTextToText if is_multimodal else AutoModelForCausalLM
    model = auto_class.from_pretrained(folder, dtype=torch.float32).eval()
    text = model.config.get_text_config()
    if experts_per_token(text):
        text._experts_implementation = "eager"  # its grouped products support only rows of a multiple of 16 bytes
    if hasattr(model.config, "output_router_logits"):
        model.config.output_router_logits = False  # otherwise transformers cannot run a model whose layers are all dense
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    # If a layer has a window of one token, transformers' cache keeps all tokens.
    use_cache = getattr(model.config.get_text_config(), "sliding_window", None) != 1
    with torch.no_grad():
        result = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, use_cache=use_cache,
                                return_dict_in_generate=True, output_logits=True)
    logits = torch.stack(result.logits, dim=1)
    best = logits.topk(2, dim=-1).values
    return result.sequences[:, ids.shape[1]:], (best[..., 0] - best[..., 1]) / logits.abs().amax(-1)


def check_case(name: str, folder: Path, ids: torch.Tensor) -> tuple[int, list[str]]:
    ours = load_file(folder / "greedy.safetensors")["tokens"].long()
    theirs, leads = generated(folder / "exported-greedy", ids, ours.shape[1])
    compared, faults = 0, []
    for row, (our_tokens, their_tokens, lead) in enumerate(zip(ours.tolist(), theirs.tolist(), leads.tolist(), strict=True)):
        decided = next((i for i, value in enumerate(lead) if value < UNDECIDED), len(lead))
        compared += decided
        if our_tokens[:decided] != their_tokens[:decided]:
            faults.append(f"{name}: row {row} goes on with {our_tokens}, in transformers with {their_tokens}, of which {decided} are decided")
    return compared, faults


def check_family(program: str, family: str, seeds: range) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="rp-greedy-") as scratch:
        cases = []
        for seed in seeds:
            folder = Path(scratch) / str(seed)
            _, inputs = make_case(family, seed, folder)
            cases.append((f"{family} {seed}", folder, inputs["ids"]))
        subprocess.run([program, "greedy", *[str(case[1]) for case in cases]], check=True)
        compared, faults = 0, []
        for case in cases:
            number, found = check_case(*case)
            compared += number
            faults += found
    print(f"{family}: {compared} tokens of {len(cases)} models compared")
    if compared < LEAST_COMPARED * len(cases):
        faults.append(f"{family}: only {compared} tokens of {len(cases)} models were compared")
    return faults


def main() -> int:
    program, family = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    families = list(FAMILIES) if family == "all" else [family]
    faults = [fault for each in families for fault in check_family(program, each, range(first, first + count))]
    print("\n".join(faults) or f"{count} models each give transformers' tokens: {', '.join(families)}")
    return 1 if faults or count < 1 else 0


if __name__ == "__main__":
    sys.exit(main())
