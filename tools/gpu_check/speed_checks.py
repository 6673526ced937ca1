"""What models of random weights show: hidden uploads, tokens a second beside others, the longest sequence, what determinism costs."""

import json
import re
from dataclasses import dataclass

from bench import ROOT, Bench
from checks import A_FIGURE, NotRun, Outcome, check
from runs import Run, cores, layers_that_fit, random_data, random_model, shape_text, train_until
from trace_split import split

MICROBATCHES = 16
TOKENS = 2048  # of a microbatch
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
    """A bf16 run of some steps. Its time counts from the third."""
    model = random_model(bench, work.shape, work.layers)
    data = random_data(bench, work.shape, work.sequence_length, work.sequences)
    run = train_until(bench, name, launch, model, data, steps, seconds, batch_size=work.sequences,
                      num_microbatches=min(MICROBATCHES, work.sequences), sequence_length=work.sequence_length, dtype="bf16", **settings)
    if run.result.code == -9:
        raise NotRun(f"{len(run.metrics())} of {steps} steps within {run.result.seconds:.0f} s; {run.result.said}")
    if run.result.code != 0:
        raise RuntimeError(f"train ended with {run.result.code}: {run.result.said}")
    return run


def tokens_per_second(run: Run, work: Workload) -> float:
    return work.tokens / run.step_seconds()


# All of an 8B model trained takes 122 GiB of the host's memory; how much of an upload is hidden depends on a layer, not on their number.
@check("bandwidth", ("exposed share of parameter uploads, 8B-shaped, 16 microbatches of 2048 tokens", "< 0.02"))
def exposed_uploads(bench: Bench) -> list[Outcome]:
    work = Workload("8b", layers_that_fit("8b", most=8))
    trace = bench.scratch / "exposed.json"
    run = traced_run(bench, "exposed", work, trace, 85)
    shares = split(trace)
    return [Outcome(f"{shares['weights']:.4f} of the time ({work.text()}; {tokens_per_second(run, work):.0f} tokens/s)", shares["weights"] < 0.02)]


def traced_run(bench: Bench, name: str, work: Workload, trace, seconds: float, **settings) -> Run:
    """rp-launch writes the trace at the end of the run, however that comes."""
    return speed_run(bench, name, work, ["--gpus", "0,", "--trace", trace], seconds, kills_coordinator=True, **settings)


def sequence_workloads() -> dict[str, Workload]:
    return {shape: Workload(shape, layers_that_fit(shape, asynchronous=True, most=most)) for shape, most in (("1.7b", None), ("8b", 16))}


def throughput_lines(name: str, mode: str) -> tuple[tuple[str, str], ...]:
    return ((f"tokens/s, {name}-shaped, {mode}", A_FIGURE),
            (f"time split, {name}-shaped, {mode}: compute, exposed transfers, exposed updates, rest (bubble)", A_FIGURE),
            (f"tokens/s, {name}-shaped, {mode}, of the Python package roundpipe's", ">= 1.1"))


def rival(bench: Bench, program: str, work: Workload, seconds: float, *words: str) -> float:
    """Tokens a second of another program for the same shape, batch and precision."""
    command = [bench.python(), ROOT / "benchmarks" / program, "--shape", work.shape, "--layers", work.layers, "--batch-size", work.sequences,
               "--sequence-length", work.sequence_length, "--num-microbatches", min(MICROBATCHES, work.sequences), *words]
    result = bench.run(command, seconds)
    if result.code == 69:
        raise NotRun(result.said.split(": ", 1)[-1])
    if result.code is None:
        raise NotRun(f"{program} did not end within {seconds:.0f} s")
    found = re.search(r'^\{.*"tokens_per_second".*\}$', result.out, re.MULTILINE)
    if not found:
        raise RuntimeError(f"{program} ended with {result.code}: {result.said}")
    return float(json.loads(found.group(0))["tokens_per_second"])


def beside(bench: Bench, program: str, work: Workload, ours: float, bar: float, seconds: float, *words: str) -> Outcome:
    """Another program's failure is not ours."""
    try:
        theirs = rival(bench, program, work, seconds, *words)
    except NotRun as reason:
        return Outcome(why=str(reason))
    except RuntimeError as error:
        return Outcome(why=str(error), has_failed=True)
    return Outcome(f"{ours / theirs:.3f} ({ours:.0f} of ours, {theirs:.0f} of theirs; {work.text()})", ours >= bar * theirs)


def beside_roundpipe(bench: Bench, shape: str, mode: str, seconds: float) -> list[Outcome]:
    """Tokens a second, those beside roundpipe's, and of a synchronous run where its time went."""
    work = sequence_workloads()[shape]
    trace = bench.scratch / f"{shape}-{mode}.json"
    run = traced_run(bench, f"speed-{shape}-{mode}", work, trace, seconds, **({"async": True} if mode == "async" else {}))
    ours = tokens_per_second(run, work)
    outcomes = [Outcome(f"{ours:.0f} ({work.text()})"),
                Outcome(", ".join(f"{name} {share:.3f}" for name, share in split(trace).items()))]
    outcomes.append(beside(bench, "python_roundpipe.py", work, ours, 1.1, seconds, "--mode", mode))
    return outcomes


@check("throughput", *throughput_lines("1.7B", "synchronous"))
def small_synchronous(bench: Bench) -> list[Outcome]:
    return beside_roundpipe(bench, "1.7b", "sync", 60)


@check("throughput", *throughput_lines("1.7B", "asynchronous"))
def small_asynchronous(bench: Bench) -> list[Outcome]:
    return beside_roundpipe(bench, "1.7b", "async", 60)


@check("throughput", ("tokens/s, 1.7B-shaped, synchronous, of FSDP2's with CPU offload", A_FIGURE))
def beside_fsdp(bench: Bench) -> list[Outcome]:
    work = sequence_workloads()["1.7b"]
    run = Run(result=None, output=bench.scratch / "runs" / "speed-1.7b-sync")
    if len(run.metrics()) < 3:
        raise NotRun("there is no figure of ours")
    return [beside(bench, "fsdp2_offload.py", work, tokens_per_second(run, work), 0, 90)]


@check("throughput", *throughput_lines("8B", "synchronous"))
def large_synchronous(bench: Bench) -> list[Outcome]:
    return beside_roundpipe(bench, "8b", "sync", 90)


@check("throughput", *throughput_lines("8B", "asynchronous"))
def large_asynchronous(bench: Bench) -> list[Outcome]:
    return beside_roundpipe(bench, "8b", "async", 90)


@check("signals", ("tokens/s of two workers on one GPU, small stages: `--signals memops`, of `--signals events`'", A_FIGURE))
def signals_in_training(bench: Bench) -> list[Outcome]:
    work = Workload("signals", 12, sequence_length=256)
    speeds: dict[str, list[float]] = {"memops": [], "events": []}
    for turn in range(2):  # in turns: the machine's speed drifts
        for signals, found in speeds.items():
            launch = ["--gpus", "0,0", "--gpu-memory", "8G", "--signals", signals]
            found.append(tokens_per_second(speed_run(bench, f"signals-{signals}-{turn}", work, launch, 30, steps=20), work))
    words, events = max(speeds["memops"]), max(speeds["events"])
    return [Outcome(f"{words / events:.3f} ({words:.0f} and {events:.0f})")]


# First the published length, then longer ones as long as they fit.
def longest_sequence(bench: Bench, shape: str, layers: int, published: int) -> Outcome:
    longest, failure = 0, ""
    for factor in (1.0, 1.25, 1.5, 0.75):
        length = int(published * factor) // 256 * 256 + 256 * (factor == 1.0)
        if (factor < 1 and longest) or bench.left < 25:
            break
        work = Workload(shape, layers, sequence_length=length, sequences=1)
        try:
            speed_run(bench, f"longest-{shape}", work, ["--gpus", "0,", "--gpu-memory", "24G"], 60, steps=1, recompute_grain="layer")
            longest = length
        except (RuntimeError, NotRun) as reason:
            failure = failure or f"{length}: {reason}"
            if longest:
                break
    if not longest:
        raise RuntimeError(failure or "nothing was tried in time")
    return Outcome(f"{longest} tokens ({shape_text(shape, layers)})", longest >= published, failure)


@check("memory", ("longest sequence with `--gpu-memory 24G`, 1.7B-shaped", ">= 73000"))
def longest_small(bench: Bench) -> list[Outcome]:
    return [longest_sequence(bench, "1.7b", layers_that_fit("1.7b"), 73000)]


# What a GPU holds at once is a stage and its activations: more layers take memory of the host only.
@check("memory", ("longest sequence with `--gpu-memory 24G`, 8B-shaped", ">= 49000"))
def longest_large(bench: Bench) -> list[Outcome]:
    return [longest_sequence(bench, "8b", layers_that_fit("8b", most=8), 49000)]


@check("determinism", ("tokens/s with `--allow-nondeterminism`, of those without", A_FIGURE))
def worth_of_nondeterminism(bench: Bench) -> list[Outcome]:
    work = Workload("1.7b", layers_that_fit("1.7b", most=8))
    plain = tokens_per_second(speed_run(bench, "deterministic", work, ["--gpus", "0,"], 25), work)
    free = tokens_per_second(speed_run(bench, "free", work, ["--gpus", "0,", "--allow-nondeterminism"], 25), work)
    return [Outcome(f"{free / plain:.3f} ({free:.0f} of {plain:.0f}; {work.text()}; {cores()} cores)")]
