"""Checks what the project relies on from the driver: signals, kernels, events of processes that died."""

import re

from bench import Bench
from checks import A_FIGURE, NotRun, Outcome, check
from printed import num_passed, outcome_of_tests, printed, trouble_of


@check("kernels", ("kernel tests on the GPU", "all pass"))
def kernel_tests(bench: Bench) -> list[Outcome]:
    return [outcome_of_tests(bench.run([bench.program("cuda_kernels_test")], 60))]


@check("kernels", ("LibTorch's kernels as the models call them, compared with fp64: packed documents, grouped products with experts without rows", "all pass"))
def torch_tests(bench: Bench) -> list[Outcome]:
    return [outcome_of_tests(bench.run([bench.program("torch_on_gpu_test")], 60))]


# The kernels in the table of kernels/gpu_kernels.h; the expansion once for each format, of a weight with as many rows as tokens.
KERNELS = ("rms_norm", "add_rms_norm", "rms_norm_grad", "rotary_table", "rotate", "glu", "glu_grad", "cross_entropy", "sum_losses", "scale",
           "round_gradient", "embed", "embed_grad", "plan_experts", "grouped_linear", "grouped_linear_grad", "grouped_weight_grad",
           *(f"expand_weights_{each}" for each in ("nf4", "nf4_double", "mxfp4", "fp8_blocks", "fp8_tensor")),
           "convolution", "convolution_grad", "gated_norm", "gated_norm_grad", "delta_rule", "delta_rule_grad")
KERNEL_TOKENS = (2048, 16384, 73728)


@check("kernels", *((f"GB/s of `{kernel}`, bf16, of {', '.join(map(str, KERNEL_TOKENS))} tokens", A_FIGURE) for kernel in KERNELS))
def kernel_speeds(bench: Bench) -> list[Outcome]:
    found = printed(bench.run([bench.program("gpu_kernel_speed")], 40), "kernel", "tokens")
    bench.note_table(("kernel", "tokens", "us", "gbs"), found.lines.values())

    def outcome(kernel: str) -> Outcome:
        each = [found.outcome((kernel, tokens), lambda line: f"{line['gbs']:.0f} ({line['us']:.1f} us)") for tokens in KERNEL_TOKENS]
        known = [one.figure for one in each if one.figure]
        # If the GPU's memory is too small for the largest number of tokens, the other figures still
        # count.
        return Outcome(", ".join(known), True) if known else each[0]

    return [outcome(kernel) for kernel in KERNELS]


# The cases by the names that gpu_dead_events prints.
DEAD_CASES = {
    "never_recorded": "IPC event that was never recorded, its process killed",
    "before_completion": "IPC event recorded behind work, its process killed before the work was done",
    "after_completion": "IPC event recorded behind work, its process killed after the work was done",
    "word_before_completion": "word written by `cuStreamWriteValue64` behind work, its process killed before the work was done",
    "word_after_completion": "word written by `cuStreamWriteValue64` behind work, its process killed after the work was done",
}


def dead_text(line: dict) -> str:
    return "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in line.items() if key not in ("case", "driver_version"))


@check("death", *((what, A_FIGURE) for what in DEAD_CASES.values()))
def dead_events(bench: Bench) -> list[Outcome]:
    # A wait that blocks is watched for some seconds. This may use most of the part, except the time
    # for the checks after it.
    found = printed(bench.run([bench.program("gpu_dead_events")], bench.all_but(30)), "case")
    return [found.outcome(case, dead_text) for case in DEAD_CASES]


# Runs before the latencies, which may measure something that does not work.
@check("signals", ("two, three and eight processes on one GPU wait for each other by words and by IPC events", "all pass"))
def signal_tests(bench: Bench) -> list[Outcome]:
    result = bench.run([bench.program("gpu_signals_test")], 45)
    passed = num_passed(result)
    if result.code is None:
        return [Outcome(why=f"did not end within {result.seconds:.0f} s: {trouble_of(result)}", has_failed=True)]
    is_met = result.code == 0 and passed > 0
    return [Outcome(f"{passed} passed, exit code {result.code}", is_met, "" if is_met else trouble_of(result))]


def latency_text(line: dict) -> str:
    return f"median {line['median_us']:.1f} us, p99 {line['p99_us']:.1f} us"


def polling_text(line: dict) -> str:
    return f"{line['ratio']:.3f} of that without ({line['with_gbs']:.1f} of {line['without_gbs']:.1f} GB/s)"


@check("signals", ("end of a download -> start of the other process's upload: host functions", A_FIGURE),
       ("end of a download -> start of the other process's upload: `--signals memops`", A_FIGURE),
       ("end of a download -> start of the other process's upload: `--signals events`", A_FIGURE),
       ("bandwidth of a copy while another stream polls a word of the host", A_FIGURE))
def signal_latencies(bench: Bench) -> list[Outcome]:
    found = printed(bench.run([bench.program("gpu_signals")], 50), "what")
    return [found.outcome(name, latency_text) for name in ("host", "words", "events")] + [found.outcome("polling", polling_text)]


def host_function_text(line: dict) -> str:
    return (f"median {line['median_us']:.1f} us, p99 {line['p99_us']:.1f} us; {line['calls_per_s_on_one']:.0f} a second on one stream, "
            f"{line['calls_per_s_on_several']:.0f} on {line['streams']}")


@check("signals", ("host functions of a stream: latency on an idle stream, calls a second on one stream and on ten", A_FIGURE))
def host_functions(bench: Bench) -> list[Outcome]:
    found = printed(bench.run([bench.program("gpu_host_functions")], 20), "what")
    return [found.outcome("host_functions", host_function_text)]


@check("nccl", ("workers on one GPU each exchange gradients with themselves over NCCL; a node that never comes is given up", "all pass"))
def nccl_tests(bench: Bench) -> list[Outcome]:
    result = bench.run([bench.program("gpu_nccl_test")], 35)
    # NCCL belongs to LibTorch's wheels or to the system, and is not part of a bundle.
    if missing := re.search(r"^child: (--reduce nccl needs NCCL .*)$", result.err, re.MULTILINE):
        raise NotRun(missing.group(1))
    return [outcome_of_tests(result)]
