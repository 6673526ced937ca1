#!/usr/bin/env python3
"""Compares the training speed with that of transformers and peft, in one run: tokens/s of both and their ratio.

There are four kinds: `full`, all weights of MODEL; `lora`, pairs of rank 16 at all its linear layers; `experts`, all weights of a Qwen3-MoE
of 8 layers x 32 experts that is made for it (hidden size 512, experts of 256, 4 experts per token, random weights); `hybrid`, all weights of
a Qwen3.5 of 100 million parameters that is made for it (16 layers, of which 12 have a gated delta rule). For its delta rule, transformers has
kernels on GPUs only; here it runs `torch_chunk_gated_delta_rule` and LibTorch's convolution.

transformers: bf16 weights, the whole batch in one forward, fused torch.optim.AdamW timed with the step. Attention, gradient checkpointing,
product of experts, dtype of pairs and number of threads are those with which it is fastest on this machine: each is tried before, one after
the other, except those that --fixed gives.
Ours: `train` with the same batch, as 1 worker on THREADS threads and as THREADS workers on 1 thread each; a step has as many rounds as there
are workers (--rounds-per-step), or one round with --one-round. Each figure is the median of steps 2-5. The runs take turns, so that a machine
whose speed drifts affects all of them alike.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))

from make_random_model import write_data  # noqa: E402

RANK = 16
EXPERTS = dict(hidden_size=512, intermediate_size=1536, moe_intermediate_size=256, num_hidden_layers=8, num_experts=32, num_experts_per_tok=4,
               norm_topk_prob=True, num_attention_heads=8, num_key_value_heads=4, head_dim=64, vocab_size=8192, max_position_embeddings=4096,
               tie_word_embeddings=False, pad_token_id=None, bos_token_id=1, eos_token_id=2)
HYBRID = dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=16, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
              linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128, vocab_size=32768,
              max_position_embeddings=4096, tie_word_embeddings=False, pad_token_id=None, bos_token_id=1, eos_token_id=2)
# The kinds whose models are made, with their families.
MADE = {"experts": ("qwen3_moe", EXPERTS), "hybrid": ("qwen3_5_text", HYBRID)}
# The settings of transformers that are tried; the first of each is its default. Its third product of experts, batched_mm, is left out: it
# copies the experts' weights for each token.
CHOICES = {"attention": ("sdpa", "eager"), "checkpointing": (False, True), "experts": ("grouped_mm", "eager"),
           "pairs": ("float32", "bfloat16")}
OF_KIND = {"full": ("attention", "checkpointing"), "lora": ("attention", "checkpointing", "pairs"),
           "experts": ("attention", "checkpointing", "experts"), "hybrid": ("attention", "checkpointing")}


def run_transformers(arguments, run):
    """Trains with transformers, in a process of its own, so that its memory and threads are gone afterwards."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(run["threads"])
    experts = {"experts_implementation": run["experts"]} if "experts" in run else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(run["model"], dtype=torch.bfloat16, attn_implementation=run["attention"], **experts)
    if run["kind"] == "lora":
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear", task_type="CAUSAL_LM"),
                                    autocast_adapter_dtype=run["pairs"] == "float32")
    if run["checkpointing"]:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-5, fused=True)
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(run["steps"]):
        ids = torch.randint(0, model.config.vocab_size, (arguments.batch_size, arguments.sequence_length), generator=generator)
        start = time.perf_counter()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    print(statistics.median(seconds[1:]))


def measure_transformers(run, steps=5):
    command = [sys.executable, __file__, *sys.argv[1:], "--transformers-only", json.dumps(run | {"steps": steps})]
    environment = dict(os.environ, OMP_NUM_THREADS=str(run["threads"]), HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error",
                       PYTHONWARNINGS="ignore::FutureWarning")
    result = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(result.stdout.split()[-1])


def best_transformers(arguments, kind, model):
    """Returns the settings with which transformers is fastest. Each of them is chosen in turn."""
    run = {"kind": kind, "model": str(model), "threads": arguments.threads} | {name: CHOICES[name][0] for name in OF_KIND[kind]}
    run |= {name: value for name, value in arguments.fixed.items() if name in run}
    tried = [name for name in (*OF_KIND[kind], "threads") if name not in arguments.fixed]
    fastest = measure_transformers(run, steps=3) if tried else 0
    for name in tried:
        values = CHOICES[name][1:] if name in CHOICES else [n for n in range(1, os.cpu_count() + 1) if n != arguments.threads]
        for value in values:
            seconds = measure_transformers(run | {name: value}, steps=3)
            print(f"  transformers with {name} {value} takes {seconds / fastest:.2f} times as long as with {run[name]}", flush=True)
            if seconds < fastest:
                run, fastest = run | {name: value}, seconds
    return run


def measure_ours(arguments, kind, model, data, workers, threads):
    with tempfile.TemporaryDirectory() as scratch:
        output = pathlib.Path(scratch) / "out"
        rounds = 1 if arguments.one_round else workers
        command = [f"{arguments.bin}/rp-launch", "--workers", str(workers), "--threads-per-worker", str(threads), "train",
                   "--model", str(model), "--data", str(data), "--output", str(output), "--max-steps", "5",
                   "--batch-size", str(arguments.batch_size), "--num-microbatches", str(arguments.num_microbatches // rounds),
                   "--rounds-per-step", str(rounds),
                   "--sequence-length", str(arguments.sequence_length), "--learning-rate", "1e-5", "--no-packing", "--seed", "1", "--dtype", "bf16",
                   "--recompute-grain", arguments.recompute_grain]
        if kind == "lora":
            command += ["--lora-rank", str(RANK)]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}")
        steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(step["seconds"] for step in steps[1:5])


def make_model(kind, folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    family, sizes = MADE[kind]
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes), dtype=torch.bfloat16).save_pretrained(folder)


def compare(arguments, kind, scratch):
    model = arguments.model
    if kind in MADE:
        model = pathlib.Path(scratch) / kind
        make_model(kind, model)
    vocabulary = json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"]
    data = pathlib.Path(scratch) / f"{kind}.tokens"  # without padding: every token of every row is trained, as in transformers' run
    write_data(data, vocabulary, arguments.sequence_length, 6 * arguments.batch_size)
    print(f"{kind}:", flush=True)
    reference = best_transformers(arguments, kind, model)
    print("  transformers: " + ", ".join(f"{name} {value}" for name, value in reference.items() if name not in ("kind", "model")), flush=True)
    ours = {f"1 worker x {arguments.threads} threads": (1, arguments.threads), f"{arguments.threads} workers x 1 thread": (arguments.threads, 1)}
    runs = {"transformers": []} | {name: [] for name in ours}
    tokens = arguments.batch_size * arguments.sequence_length
    for _ in range(arguments.rounds):
        runs["transformers"].append(measure_transformers(reference))
        for name, (workers, threads) in ours.items():
            runs[name].append(measure_ours(arguments, kind, model, data, workers, threads))
        print("  a run: " + ", ".join(f"{name} {tokens / seconds[-1]:.1f} tokens/s" for name, seconds in runs.items()), flush=True)
    for name, seconds in runs.items():
        ratios = [theirs / mine for theirs, mine in zip(runs["transformers"], seconds)]
        print(f"  {name:24} {tokens / statistics.median(seconds):8.1f} tokens/s   ratio to transformers "
              f"{statistics.median(ratios):.3f} (runs {', '.join(f'{ratio:.3f}' for ratio in ratios)})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--kinds", default="full,lora,experts", help="which of them, with commas (default: %(default)s)")
    parser.add_argument("--bin", default="build/release/bin", help="where rp-launch and train are")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--num-microbatches", type=int, default=2, help="of a step, of ours; a multiple of the threads")
    parser.add_argument("--one-round", action="store_true", help="of ours: all microbatches of a step in one round")
    parser.add_argument("--recompute-grain", default="layer", help="of ours (default: %(default)s)")
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--fixed", type=json.loads, default={}, metavar="JSON",
                        help="""settings of transformers that are fixed instead of tried, such as '{"attention": "sdpa", "threads": 2}'""")
    parser.add_argument("--transformers-only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.transformers_only:
        run_transformers(arguments, json.loads(arguments.transformers_only))
        return
    print(f"{arguments.batch_size} x {arguments.sequence_length} tokens a step, median of steps 2-5 in each of {arguments.rounds} runs", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for kind in arguments.kinds.split(","):
            compare(arguments, kind, scratch)


if __name__ == "__main__":
    main()
