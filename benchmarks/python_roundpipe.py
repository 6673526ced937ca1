#!/usr/bin/env python3
"""Tokens a second of the Python package roundpipe (PyPI), on one GPU: an nn.Sequential of the same shape, batch and precision as
`train` has in scripts/gpu-check.sh, by its documented calls. bf16 weights, fp32 copies in the optimizer, its own fused Adam with
decoupled weight decay, its default recompute; the median of the steps but the first two. Prints a line of JSON. Exit code 69:
no GPU, or roundpipe is not installed.
"""
import importlib.util
import json
import statistics
import sys
import time


def main() -> int:
    if importlib.util.find_spec("roundpipe") is None:
        print("python_roundpipe.py: roundpipe is not installed", file=sys.stderr)
        return 69
    import torch
    import torch_llama

    parser = torch_llama.options(__doc__)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    arguments = parser.parse_args()
    torch_llama.need_gpu("python_roundpipe.py")
    from roundpipe import RoundPipe, RoundPipeRunConfig
    from roundpipe.optim import Adam

    model = RoundPipe(torch_llama.build(arguments.shape, arguments.layers), optim_dtype=torch.float32,
                      model_run_config=RoundPipeRunConfig(num_microbatch=arguments.num_microbatches))
    optimizer = Adam(model.optim_parameters(), lr=1e-5, weight_decay=0.0, decoupled_weight_decay=True)
    ids, labels = torch_llama.batch(arguments.shape, arguments.batch_size, arguments.sequence_length)
    tokens = ids.numel()

    def update():
        optimizer.step()
        optimizer.zero_grad()

    seconds = []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        loss = model.forward_backward(input_args=(ids,), label=labels, loss_fn=lambda outputs, its: torch_llama.loss_of(outputs, its) / tokens)
        model.step(update, is_async=arguments.mode == "async")
        seconds.append(time.perf_counter() - start)
    model.synchronize()
    print(json.dumps({"tokens_per_second": tokens / statistics.median(seconds[2:]), "loss": float(loss), "mode": arguments.mode}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
