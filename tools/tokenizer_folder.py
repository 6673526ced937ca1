"""Finds and loads the tokenizer of a Hugging Face directory, and explains what is wrong with a
directory that has none."""

import hashlib
import os
import re
import sys
from pathlib import Path

from tool import BAD_INPUT, ToolError

# A tokenizer consists of all files of one entry. Almost every model has the first entry.
TOKENIZER_FILES = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("vocab.txt",))
EXPORT = "rp-launch train --model MODEL --export {checkpoint} --output DIR"


def check_model_folder(folder: Path) -> None:
    """Refuses a path that is not the folder of a model, and reports what it is instead."""
    if not folder.exists():
        raise ToolError(BAD_INPUT, f"{folder}: there is no such directory{_hub_hint(folder)}")
    if not folder.is_dir():
        raise ToolError(BAD_INPUT, f"{folder}: is not a directory; give the directory that has config.json and tokenizer.json")
    if (folder / "config.json").exists():
        return
    # Checked before "no tokenizer": `train` writes these next to a model.
    if (folder / "state.json").exists() and (folder / "XXH128SUMS").exists():
        raise ToolError(BAD_INPUT, f"{folder}: is a checkpoint of `train`, not a model; {_model_of(folder.resolve().parent, folder)}")
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name))
    if (folder / "final").is_dir() or checkpoints:
        newest = checkpoints[-1] if checkpoints else folder
        raise ToolError(BAD_INPUT, f"{folder}: is an output directory of `train`, not a model; {_model_of(folder, newest)}")


def check_tokenizer_files(folder: Path) -> None:
    check_model_folder(folder)
    if any(all((folder / name).exists() for name in names) for names in TOKENIZER_FILES):
        return
    if (folder / "adapter_config.json").exists():
        raise ToolError(BAD_INPUT, f"{folder}: is an adapter, which has no tokenizer; give the directory of the model that it was trained with")
    looked = ", ".join(" with ".join(names) for names in TOKENIZER_FILES)
    raise ToolError(BAD_INPUT, f"{folder}: has no tokenizer (looked for {looked}); copy tokenizer.json, tokenizer_config.json and "
                               "chat_template.jinja from the model that this one was made of, or fetch them: "
                               f"hf download ID --include 'tokenizer*' '*.jinja' --local-dir {folder}")


def load_tokenizer(folder: Path):
    """Returns the tokenizer of `folder`, set to never truncate a text. Nothing is fetched from the network."""
    check_tokenizer_files(folder)
    file = folder / "tokenizer.json"
    if file.exists():
        with open(file, "rb") as opened:
            if opened.read(20).startswith(b"version https://git"):
                raise ToolError(BAD_INPUT, f"{file}: is a pointer of Git LFS, not the file itself; run `git lfs pull` in {folder}")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the library raises many kinds
        raise ToolError(BAD_INPUT, f"{folder}: no tokenizer can be loaded from it: {first_line(error)}") from error
    if not tokenizer.is_fast:
        raise ToolError(BAD_INPUT, f"{folder}: has no tokenizer.json")
    tokenizer.model_max_length = sys.maxsize  # truncation is left to the reader
    return tokenizer


def tokenizer_identity(folder: Path) -> int:
    """Returns the tokenizer's identity in token files (docs/formats/tokens.md): 0 if the folder has
    no tokenizer.json."""
    try:
        data = (folder / "tokenizer.json").read_bytes()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ToolError(BAD_INPUT, f"{folder / 'tokenizer.json'}: cannot be read: {error.strerror}") from error
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _hub_hint(folder: Path) -> str:
    name = str(folder)
    # A relative path of two parts whose first part does not exist.
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) or folder.parent.exists():
        return ""
    return (f"; models are read from local directories: if {name} is one of the Hugging Face hub, download it first: "
            f"hf download {name} --local-dir {folder.name}")


def _model_of(output: Path, checkpoint: Path) -> str:
    """Returns a text that reports where the model of the run in `output` is, or how to write it."""
    export = EXPORT.format(checkpoint=checkpoint)
    for name in ("merged", "final"):
        if (output / name / "config.json").exists():
            return f"use {output / name}, which is that of the last step, or write a checkpoint's: {export}"
    if (output / "final" / "adapter_config.json").exists():
        return f"its model is an adapter ({output / 'final'}): use the model that was trained, or train with --save-merged and use {output / 'merged'}"
    return f"the model is written into {output / 'final'} when the run ends, and of a checkpoint by: {export}"
