#!/usr/bin/env python3
"""Measures the tokens/s of the Python package roundpipe (PyPI) on one GPU, by its documented calls.

The model is an nn.Sequential; shape, batch and precision are those of `train` in scripts/gpu-check.sh. bf16 weights, fp32 copies in the
optimizer, the package's own fused Adam with decoupled weight decay, its default recompute; the median of the steps except the first two.
Prints a line of JSON. Exit code 69: no GPU, or roundpipe is not installed or lacks a package.

`--prepare` takes a single step: the first step on a machine compiles the optimizer (with g++ and ninja), which takes half a minute. With
beartype 0.23 or newer, roundpipe checks the types of its calls while it runs, so install an older one.
"""
import importlib.util
import json
import os
import statistics
import sys
import sysconfig
import time
from pathlib import Path


def main() -> int:
    if importlib.util.find_spec("roundpipe") is None:
        print("python_roundpipe.py: roundpipe is not installed", file=sys.stderr)
        return 69
    import torch
    import torch_llama

    parser = torch_llama.options(__doc__)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--prepare", action="store_true")
    arguments = parser.parse_args()
    torch_llama.need_gpu("python_roundpipe.py")
    # The folders in which pip and `pip install --target` put ninja, with which the optimizer is compiled.
    folders = [sysconfig.get_path("scripts"), *(str(Path(folder) / "bin") for folder in sys.path if folder)]
    os.environ["PATH"] = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    try:
        from roundpipe import RoundPipe, RoundPipeRunConfig
        from roundpipe.optim import Adam
    except ImportError as error:
        print(f"python_roundpipe.py: roundpipe cannot be imported: {error}", file=sys.stderr)
        return 69

    model = RoundPipe(torch_llama.build(arguments.shape, arguments.layers), optim_dtype=torch.float32,
                      model_run_config=RoundPipeRunConfig(num_microbatch=arguments.num_microbatches))
    optimizer = Adam(model.optim_parameters(), lr=1e-5, weight_decay=0.0, decoupled_weight_decay=True)
    ids, labels = torch_llama.batch(arguments.shape, arguments.batch_size, arguments.sequence_length)
    tokens = ids.numel()

    def update():
        optimizer.step()
        optimizer.zero_grad()

    seconds = []
    for _ in range(1 if arguments.prepare else arguments.steps):
        start = time.perf_counter()
        loss = model.forward_backward(input_args=(ids,), label=labels, loss_fn=lambda outputs, its: torch_llama.loss_of(outputs, its) / tokens)
        model.step(update, is_async=arguments.mode == "async")
        seconds.append(time.perf_counter() - start)
    model.synchronize()
    if arguments.prepare:
        return 0
    print(json.dumps({"tokens_per_second": tokens / statistics.median(seconds[2:]), "loss": float(loss), "mode": arguments.mode}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
