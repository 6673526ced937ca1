"""Checks with models of random weights: hidden uploads, speed compared with other programs, the
longest sequence, the cost of determinism."""

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from bench import ROOT, Bench
from checks import A_FIGURE, NotRun, Outcome, check
from runs import (FROZEN, TRAINED_ASYNCHRONOUSLY, Run, cores, empty_model, layers_that_fit, random_data, random_model, shape_text,
                  train_until)
from trace_split import split

MICROBATCHES = 16
TOKENS = 2048  # in a microbatch
STEPS = 5


@dataclass(frozen=True)
class Workload:
    shape: str
    layers: int
    sequence_length: int = TOKENS
    sequences: int = MICROBATCHES

    @property
    def tokens(self) -> int:
        return self.sequence_length * self.sequences

    def text(self) -> str:
        return f"{shape_text(self.shape, self.layers)}, {self.sequences} x {self.sequence_length} tokens"


def speed_run(bench: Bench, name: str, work: Workload, launch: list, seconds: float, steps: int = STEPS, **settings) -> Run:
    """A bf16 run of some steps. Its time is measured from the third step."""
    model = random_model(bench, work.shape, work.layers)
    data = random_data(bench, work.shape, work.sequence_length, work.sequences)
    run = train_until(bench, name, launch, model, data, steps, seconds, batch_size=work.sequences,
                      num_microbatches=min(MICROBATCHES, work.sequences), sequence_length=work.sequence_length, dtype="bf16", **settings)
    if run.result.code is None:
        raise NotRun(f"{len(run.metrics())} of {steps} steps within {run.result.seconds:.0f} s; {run.result.said}")
    if run.result.code != 0:
        raise RuntimeError(f"train ended with {run.result.code}: {run.result.said}")
    return run


def tokens_per_second(run: Run, work: Workload) -> float:
    return work.tokens / run.step_seconds()


# Training a complete 8B model needs 122 GiB of host memory. The hidden share of uploads depends on
# a single layer, not on the number of layers.
@check("bandwidth", ("exposed share of parameter uploads, 8B-shaped, 16 microbatches of 2048 tokens", "< 0.02"))
def exposed_uploads(bench: Bench) -> list[Outcome]:
    work = Workload("8b", layers_that_fit("8b", most=8))
    trace = bench.scratch / "exposed.json"
    run = traced_run(bench, "exposed", work, trace, 85)
    shares = split(trace)
    return [Outcome(f"{shares['weights']:.4f} of the time ({work.text()}; {tokens_per_second(run, work):.0f} tokens/s)", shares["weights"] < 0.02)]


def doctor(bench: Bench) -> tuple[Path, dict]:
    """Returns the profile that `rp-launch doctor` has measured, and its report about the first GPU."""
    profile, report = bench.scratch / "profile.json", bench.scratch / "doctor.json"
    if not (profile.exists() and report.exists()):
        result = bench.run([bench.program("rp-launch"), "doctor", "--gpus", "0,", "--json", "--profile", profile], 70)
        if result.code is None:
            raise NotRun(f"rp-launch doctor did not end within {result.seconds:.0f} s")
        if result.code != 0:
            raise RuntimeError(f"rp-launch doctor ended with {result.code}: {result.said}")
        report.write_text(result.out)
    of_gpu = json.loads(report.read_text())["bandwidths"][0]
    if not of_gpu["alone"]:
        raise RuntimeError(f"rp-probe: {of_gpu['failure']}")
    return profile, of_gpu["alone"]


@check("bandwidth", ("bandwidths by `rp-launch doctor`, one GPU alone: to it, from it, both at once each", A_FIGURE),
       ("matrix products by `rp-launch doctor --profile`: bf16, fp16, fp16 with fp16 sums, tf32; copies inside the GPU's memory", A_FIGURE))
def doctors_figures(bench: Bench) -> list[Outcome]:
    _, alone = doctor(bench)
    speeds = ", ".join(f"{alone[name + '_gbs']:.1f}" for name in ("host_to_device", "device_to_host", "both_directions"))
    bandwidths = Outcome(f"{speeds} GB/s; {alone['copy_latency_us']:.1f} us a copy; {alone['register_s_per_gib']:.3f} s to register a GiB")
    if alone["products_problem"]:
        return [bandwidths, Outcome(why=alone["products_problem"], has_failed=True)]
    products = ", ".join(f"{alone[name + '_tflops']:.1f}" for name in ("bf16", "fp16", "fp16_accumulate", "tf32"))
    return [bandwidths, Outcome(f"{products} TFLOP/s; {alone['memory_gbs']:.0f} GB/s")]


def traced_run(bench: Bench, name: str, work: Workload, trace, seconds: float, **settings) -> Run:
    """Runs with a trace, which rp-launch writes whenever the run ends."""
    return speed_run(bench, name, work, ["--gpus", "0,", "--trace", trace], seconds, kills_coordinator=True, **settings)


def workload(shape: str) -> Workload:
    """Returns the workload that is compared with other programs: all layers of 1.7B, at most 16 of 8B."""
    return Workload(shape, layers_that_fit(shape, TRAINED_ASYNCHRONOUSLY, most=16 if shape == "8b" else None))


# The environment of the Python package roundpipe, which compiles its optimizer at the first step
# and stores it in this folder.
def roundpipe_environment(bench: Bench) -> dict[str, str]:
    return os.environ | {"TORCH_EXTENSIONS_DIR": str(bench.scratch / "torch_extensions"), "MAX_JOBS": "4"}


def prepare_roundpipe(bench: Bench) -> None:
    """Lets roundpipe compile, which takes half a minute, so that no measured step includes it. A
    failure is reported by the run itself."""
    bench.run([bench.python(), ROOT / "benchmarks" / "python_roundpipe.py", "--shape", "tiny", "--prepare"], 120, env=roundpipe_environment(bench))


def throughput_lines(name: str, mode: str) -> tuple[tuple[str, str], ...]:
    return ((f"tokens/s, {name}-shaped, {mode}", A_FIGURE),
            (f"time split, {name}-shaped, {mode}: compute, exposed transfers, exposed updates, rest (bubble)", A_FIGURE),
            (f"tokens/s, {name}-shaped, {mode}, of the Python package roundpipe's", ">= 1.1"))


def rival(bench: Bench, program: str, work: Workload, seconds: float, *words: str) -> float:
    """Returns the tokens per second of another program with the same shape, batch and precision."""
    command = [bench.python(), ROOT / "benchmarks" / program, "--shape", work.shape, "--layers", work.layers, "--batch-size", work.sequences,
               "--sequence-length", work.sequence_length, "--num-microbatches", min(MICROBATCHES, work.sequences), *words]
    result = bench.run(command, seconds, env=roundpipe_environment(bench))
    if result.code == 69:
        raise NotRun(result.said.split(": ", 1)[-1])
    if result.code is None:
        raise NotRun(f"{program} did not end within {result.seconds:.0f} s")
    found = re.search(r'^\{.*"tokens_per_second".*\}$', result.out, re.MULTILINE)
    if not found:
        raise RuntimeError(f"{program} ended with {result.code}: {result.said}")
    return float(json.loads(found.group(0))["tokens_per_second"])


def beside(bench: Bench, program: str, work: Workload, ours: float, bar: float, seconds: float, *words: str) -> Outcome:
    """Compares our tokens per second with another program's. A failure of that program does not
    fail the whole check."""
    try:
        theirs = rival(bench, program, work, seconds, *words)
    except NotRun as reason:
        return Outcome(why=str(reason))
    except RuntimeError as error:
        return Outcome(why=str(error), has_failed=True)
    return Outcome(f"{ours / theirs:.3f} ({ours:.0f} of ours, {theirs:.0f} of theirs; {work.text()})", ours >= bar * theirs)


def time_split(trace: Path) -> Outcome:
    """Returns the time split of a trace. A trace that cannot be read must not lose the other results of a run."""
    try:
        return Outcome(", ".join(f"{name} {share:.3f}" for name, share in split(trace).items()))
    except (OSError, RuntimeError, ValueError) as error:
        return Outcome(why=f"{type(error).__name__}: {error}", has_failed=True)


def beside_roundpipe(bench: Bench, shape: str, mode: str, seconds: float) -> list[Outcome]:
    """Reports our tokens per second, how the time was spent, and our tokens per second relative to
    those of roundpipe."""
    work = workload(shape)
    trace = bench.scratch / f"{shape}-{mode}.json"
    run = traced_run(bench, f"speed-{shape}-{mode}", work, trace, seconds, **({"async": True} if mode == "async" else {}))
    ours = tokens_per_second(run, work)
    outcomes = [Outcome(f"{ours:.0f} ({work.text()})"), time_split(trace)]
    outcomes.append(beside(bench, "python_roundpipe.py", work, ours, 1.1, seconds, "--mode", mode))
    return outcomes


@check("throughput", *throughput_lines("1.7B", "synchronous"))
def small_synchronous(bench: Bench) -> list[Outcome]:
    prepare_roundpipe(bench)
    return beside_roundpipe(bench, "1.7b", "sync", 60)


@check("throughput", ("step time of 1.7B-shaped, synchronous: predicted from the measured profile, of the measured one", A_FIGURE))
def predicted_step(bench: Bench) -> list[Outcome]:
    work, run = earlier_run(bench, "1.7b")
    profile, _ = doctor(bench)
    words = [bench.program("rp-plan"), "plan", "--model", random_model(bench, work.shape, work.layers), "--gpus", "1", "--gpu", profile,
             "--sequence-length", work.sequence_length, "--batch-size", work.sequences, "--microbatches", MICROBATCHES, "--rounds-per-step", "1",
             "--effort", "fast", "--json"]
    result = bench.run(words, 30)
    if result.code != 0:
        raise RuntimeError(f"rp-plan ended with {result.code}: {result.said}")
    predicted, measured = json.loads(result.out)["asked"]["step_ms"], 1000 * run.step_seconds()
    return [Outcome(f"{predicted / measured:.3f} ({predicted:.0f} of {measured:.0f} ms; updates and the host's memory by a built-in profile)")]


def earlier_run(bench: Bench, shape: str) -> tuple[Workload, Run]:
    """Returns the synchronous run that was measured before, in this call or with the same RP_GPU_SCRATCH."""
    run = Run(result=None, output=bench.scratch / "runs" / f"speed-{shape}-sync")
    if len(run.metrics()) < 3:
        raise NotRun("there is no figure of ours: the synchronous run comes before it, in the same call or with RP_GPU_SCRATCH")
    return workload(shape), run


@check("throughput", *throughput_lines("1.7B", "asynchronous"))
def small_asynchronous(bench: Bench) -> list[Outcome]:
    return beside_roundpipe(bench, "1.7b", "async", 60)


@check("throughput", ("tokens/s, 1.7B-shaped, synchronous, of FSDP2's with CPU offload", A_FIGURE))
def small_beside_fsdp(bench: Bench) -> list[Outcome]:
    return [beside_fsdp(bench, "1.7b", 90)]


def beside_fsdp(bench: Bench, shape: str, seconds: float) -> Outcome:
    work, run = earlier_run(bench, shape)
    return beside(bench, "fsdp2_offload.py", work, tokens_per_second(run, work), 0, seconds)


@check("large", *throughput_lines("8B", "synchronous"))
def large_synchronous(bench: Bench) -> list[Outcome]:
    prepare_roundpipe(bench)
    return beside_roundpipe(bench, "8b", "sync", 120)


@check("large", *throughput_lines("8B", "asynchronous"))
def large_asynchronous(bench: Bench) -> list[Outcome]:
    return beside_roundpipe(bench, "8b", "async", 120)


@check("large", ("tokens/s, 8B-shaped, synchronous, of FSDP2's with CPU offload", A_FIGURE))
def large_beside_fsdp(bench: Bench) -> list[Outcome]:
    return [beside_fsdp(bench, "8b", 150)]


@check("signals", ("tokens/s of two workers on one GPU, small stages: `--signals memops`, of `--signals events`'", A_FIGURE))
def signals_in_training(bench: Bench) -> list[Outcome]:
    work = Workload("signals", 12, sequence_length=256)
    speeds: dict[str, list[float]] = {"memops": [], "events": []}
    for turn in range(2):  # alternating, because the machine's speed drifts
        for signals, found in speeds.items():
            launch = ["--gpus", "0,0", "--gpu-memory", "8G", "--signals", signals]
            found.append(tokens_per_second(speed_run(bench, f"signals-{signals}-{turn}", work, launch, 30, steps=20), work))
    words, events = max(speeds["memops"]), max(speeds["events"])
    return [Outcome(f"{words / events:.3f} ({words:.0f} and {events:.0f})")]


GIB = 1 << 30


@dataclass(frozen=True)
class Peak:
    """The maximum memory of its GPU that a worker used at once, and its limit, as text."""

    most: str
    limit: str


AT_MOST = r"GPU memory: at most (\S+ \S+) of (\S+ \S+)"  # printed by train at its end


def trained_peak(bench: Bench, shape: str, layers: int, length: int, seconds: float) -> Peak:
    """Returns the peak of a step of train that trains all weights."""
    work = Workload(shape, layers, sequence_length=length, sequences=1)
    run = speed_run(bench, f"longest-{shape}", work, ["--gpus", "0,", "--gpu-memory", "24G"], seconds, steps=1, says=AT_MOST,
                    recompute_grain="layer")
    found = re.search(AT_MOST, run.result.err)
    if not found:
        raise RuntimeError("train does not say what it took of a GPU's memory")
    return Peak(*found.groups())


def frozen_peak(bench: Bench, shape: str, layers: int, length: int, seconds: float) -> Peak:
    """Returns the peak of a step with frozen matrices (benchmarks/frozen_step.cc). The host needs 2
    bytes per parameter instead of 16."""
    words = [bench.program("rp-launch"), "--gpus", "0,", "--gpu-memory", "24G", bench.program("frozen_step"), "--model",
             empty_model(bench, shape, layers), "--sequence-length", length]
    result = bench.run(words, seconds)
    if result.code is None:
        raise NotRun(f"no step within {result.seconds:.0f} s; {result.said}")
    found = re.search(r'^\{.*"peak_gpu_bytes".*\}$', result.out, re.MULTILINE)
    if result.code != 0 or not found:
        raise RuntimeError(f"frozen_step ended with {result.code}: {result.said}")
    line = json.loads(found.group(0))
    if line["limit_bytes"] == 0:
        raise RuntimeError("frozen_step does not know what it took of a GPU's memory")
    return Peak(f"{line['peak_gpu_bytes'] / GIB:.1f} GiB", f"{line['limit_bytes'] / GIB:.1f} GiB")


def longest_sequence(bench: Bench, peak_of, published: int, until: float, what: str) -> Outcome:
    """Tries the published length first, then longer ones if it fits and shorter ones if not, until
    only `until` seconds of the part are left. `peak_of` returns the Peak of a length within a
    number of seconds, or throws."""
    begin = time.monotonic()
    peaks: dict[int, Peak] = {}
    failures: list[str] = []

    def fits(length: int, least: float) -> bool:
        try:
            peaks[length] = peak_of(length, bench.all_but(until, least))
        except RuntimeError as reason:
            failures.append(f"{length}: {reason}")
        return length in peaks

    is_long = fits((published + 255) // 256 * 256, 60)
    took = time.monotonic() - begin
    for factor in (1.25, 1.5) if is_long else (0.75, 0.5):
        if bench.left - 1.7 * took < until:
            break
        try:
            if fits(int(published * factor) // 256 * 256, 20) != is_long:
                break
        except NotRun:  # the time was over
            break
    if not peaks:
        raise RuntimeError(failures[0])
    longest = max(peaks)
    figure = f"{longest} tokens, peak {peaks[longest].most} of {peaks[longest].limit} ({what})"
    return Outcome(figure, longest >= published, failures[0] if longest < published else "")


@check("memory", ("longest sequence with `--gpu-memory 24G`, 1.7B-shaped", ">= 73000"))
def longest_small(bench: Bench) -> list[Outcome]:
    layers = layers_that_fit("1.7b")
    return [longest_sequence(bench, lambda length, seconds: trained_peak(bench, "1.7b", layers, length, seconds), 73000, bench.left / 2,
                             f"{shape_text('1.7b', layers)}, all weights trained")]


# In addition to the frozen weights, the host stores the activations between all layers of two
# rounds.
@check("memory", ("longest sequence with `--gpu-memory 24G`, 8B-shaped, matrices frozen and norms trained", ">= 49000"))
def longest_large(bench: Bench) -> list[Outcome]:
    layers = layers_that_fit("8b", FROZEN, beside=40 * GIB)
    return [longest_sequence(bench, lambda length, seconds: frozen_peak(bench, "8b", layers, length, seconds), 49000, 0,
                             f"{shape_text('8b', layers)}, matrices frozen")]


# A GPU holds one stage and its activations at a time, so more layers only need more host memory.
@check("memory", ("longest sequence with `--gpu-memory 24G`, 8B-shaped, all weights of fewer layers trained", ">= 49000"))
def longest_large_trained(bench: Bench) -> list[Outcome]:
    layers = layers_that_fit("8b", most=4)
    return [longest_sequence(bench, lambda length, seconds: trained_peak(bench, "8b", layers, length, seconds), 49000, 0,
                             f"{shape_text('8b', layers)}, all weights trained")]


@check("determinism", ("tokens/s with `--allow-nondeterminism`, of those without", A_FIGURE))
def worth_of_nondeterminism(bench: Bench) -> list[Outcome]:
    work = Workload("1.7b", layers_that_fit("1.7b", most=8))
    plain = tokens_per_second(speed_run(bench, "deterministic", work, ["--gpus", "0,"], 25), work)
    free = tokens_per_second(speed_run(bench, "free", work, ["--gpus", "0,", "--allow-nondeterminism"], 25), work)
    return [Outcome(f"{free / plain:.3f} ({free:.0f} of {plain:.0f}; {work.text()}; {cores()} cores)")]
