"""Tests that rp-plan finds the nearest family of a config.json that transformers wrote for a family, if its model_type is changed.

    nearest_family_test.py RP_PLAN

Fails if our reader of a family does not use one of its keys, and prints these keys.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import AutoConfig

from families import FAMILIES

# For families that we do not support: the nearest family, and a key that it does not use.
RELATIVES = {"qwen2_moe": ("qwen3_moe", "'shared_expert_intermediate_size'"), "mixtral": ("mistral", "'num_local_experts'"),
             "granite": ("llama", "attention_multiplier"), "gemma2": ("gemma3_text", "'attn_logit_softcapping'")}


# Keys that every file has, although the class has a default.
IN_EVERY_FILE = {"glm4_moe": {"head_dim": 128}}


def message_of(program: str, model_type: str, values: dict) -> str:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values | {"model_type": model_type}, default=str))
        result = subprocess.run([program, "plan", "--model", folder, "--gpus", "1"], capture_output=True, text=True)
    return result.stderr if result.returncode == 64 else f"ended with {result.returncode}: {result.stderr}"


def main() -> int:
    program = sys.argv[1]
    wanted = {family: (family, "knows all of its keys") for family in FAMILIES if not hasattr(AutoConfig.for_model(family), "text_config")}
    faults = 0
    for model_type, (nearest, text) in (wanted | RELATIVES).items():
        message = message_of(program, model_type if model_type in RELATIVES else "another_" + model_type, AutoConfig.for_model(model_type, **IN_EVERY_FILE.get(model_type, {})).to_dict())
        if f"the nearest is {nearest}, which" in message and text in message:
            continue
        faults += 1
        print(f"{model_type}: {message}")
    print(f"{len(wanted)} families and {len(RELATIVES)} relatives, {faults} at fault")
    return 1 if faults or len(wanted) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
