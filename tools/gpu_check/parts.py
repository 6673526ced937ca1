"""Lists the parts of scripts/gpu-check.sh: their order, their seconds, and what each needs in a bundle (scripts/gpu-bundle.sh --parts).

    python3 tools/gpu_check/parts.py list                    for each part a line: name, seconds, and whether it belongs to the default parts
    python3 tools/gpu_check/parts.py programs|files PART...  the programs or files that a bundle for these parts contains
"""

import sys
from dataclasses import dataclass

TRAINING = ("rp-launch", "train")
TINY_MODEL = "data/tiny"  # listed like a file, but generated for the bundle
FAMILY_CASES = "data/families"  # generated for the bundle
PARITY = tuple(f"tests/parity/{name}.py" for name in ("compare_values", "distances"))
SYSTEM_TESTS = tuple(f"tests/system/{name}.py" for name in ("launched", "train_bits_test", "train_endings_test", "bits_test"))
RIVALS = tuple(f"benchmarks/{name}.py" for name in ("torch_llama", "python_roundpipe", "fsdp2_offload"))


@dataclass(frozen=True)
class Part:
    seconds: int  # at most 480, the limit for one command on many machines
    programs: tuple[str, ...]
    files: tuple[str, ...] = ()
    is_telling: bool = True  # it is one of the default parts, which need about twenty minutes


# Parts that others depend on come first, and parts that only take time come last.
PARTS = {
    "attributes": Part(20, ("rp-launch", "rp-probe")),
    "launches": Part(45, ("gpu_first_launches",)),
    "signals": Part(110, ("gpu_signals_test", "gpu_signals", "gpu_host_functions", *TRAINING)),
    "kernels": Part(40, ("cuda_kernels_test", "torch_on_gpu_test", "gpu_kernel_speed")),
    "bits": Part(60, TRAINING, (TINY_MODEL,)),
    "families": Part(65, ("model_values",), (FAMILY_CASES, *PARITY)),
    "suite": Part(150, (*TRAINING, "bits_program"), (TINY_MODEL, *SYSTEM_TESTS)),
    "death": Part(70, ("gpu_dead_events", *TRAINING), (TINY_MODEL,)),
    "replay": Part(100, TRAINING, (TINY_MODEL,)),
    "sanitizer": Part(160, ("cuda_kernels_test", *TRAINING), (TINY_MODEL,), is_telling=False),
    "registration": Part(40, ("gpu_registration",)),
    "copies": Part(60, ("gpu_bulk_copies",), is_telling=False),
    "nccl": Part(40, ("gpu_nccl_test",), is_telling=False),
    "bandwidth": Part(110, ("gpu_store_bandwidth", "rp-probe", *TRAINING)),
    "lifetime": Part(110, TRAINING),
    "throughput": Part(170, (*TRAINING, "rp-plan", "rp-probe"), RIVALS),
    "large": Part(150, TRAINING, RIVALS, is_telling=False),
    "memory": Part(110, (*TRAINING, "frozen_step")),
    "determinism": Part(50, TRAINING, is_telling=False),
}


def needs(kind: str, names: list[str]) -> list[str]:
    """Returns the programs or files of these parts, each once. Throws KeyError for an unknown part."""
    return list(dict.fromkeys(need for name in names for need in getattr(PARTS[name], kind)))


def main(words: list[str]) -> int:
    if words == ["list"]:
        for name, part in PARTS.items():
            print(name, part.seconds, "telling" if part.is_telling else "named")
        return 0
    if words[:1] in (["programs"], ["files"]) and set(words[1:]) <= set(PARTS):
        print("\n".join(needs(words[0], words[1:] or list(PARTS))))
        return 0
    print(f"parts.py: {' '.join(words)}: it takes list, or programs or files and parts: {' '.join(PARTS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
