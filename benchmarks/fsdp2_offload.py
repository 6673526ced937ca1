#!/usr/bin/env python3
"""Measures the tokens/s of PyTorch's FSDP2 (fully_shard) on one GPU, with parameters, gradients and optimizer state on the CPU.

Shape, batch and precision are those of `train` in scripts/gpu-check.sh. The weights are fp32 and computed with in bf16; activation
checkpointing by decoder layer; fused AdamW on the CPU; the whole batch as microbatches whose gradients are added up. Takes the median of
the steps except the first two. Prints a line of JSON. Exit code 69: no GPU, or a torch without FSDP2.
"""
import json
import os
import statistics
import sys
import tempfile
import time


def sharded(model):
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    import torch_llama

    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, torch_llama.DecoderLayer))
    settings = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
                "offload_policy": CPUOffloadPolicy(pin_memory=True)}
    for layer in model[1:-1]:
        fully_shard(layer, **settings)
    fully_shard(model, **settings)
    return model


def main() -> int:
    import torch

    import torch_llama

    arguments = torch_llama.options(__doc__).parse_args()
    torch_llama.need_gpu("fsdp2_offload.py")
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard  # noqa: F401
    except ImportError:
        print("fsdp2_offload.py: this torch has no FSDP2", file=sys.stderr)
        return 69
    # One process: no network is needed, and there may be none.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.NamedTemporaryFile() as rendezvous:
        torch.distributed.init_process_group("cuda:nccl,cpu:gloo", init_method=f"file://{rendezvous.name}.store", rank=0, world_size=1)
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        model = sharded(torch_llama.build(arguments.shape, arguments.layers).float())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
        ids, labels = torch_llama.batch(arguments.shape, arguments.batch_size, arguments.sequence_length)
        tokens = ids.numel()
        seconds = []
        for _ in range(arguments.steps):
            start = time.perf_counter()
            parts = list(zip(ids.tensor_split(arguments.num_microbatches), labels.tensor_split(arguments.num_microbatches)))
            for i, (part, its) in enumerate(parts):
                model.set_requires_gradient_sync(i + 1 == len(parts))
                loss = torch_llama.loss_of(model(part.cuda()), its.cuda()) / tokens
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"tokens_per_second": tokens / statistics.median(seconds[2:]), "loss": float(loss)}))
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
