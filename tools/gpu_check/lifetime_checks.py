"""Checks the beginning and end of a run on a GPU: time to the first step, free memory, time until
all memory is freed."""

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench import Bench, Result, free_gpu_mib
from checks import A_FIGURE, NotRun, Outcome, check
from runs import Run, bytes_of, command, empty_model, layers_that_fit, processes_with, random_data, shape_text

STEPS = 3
WARM_UP = re.compile(r"warm-up: (\d+\.\d+) s")  # printed by train after its first step
END_OF_TRAINING = re.compile(r"trained \d+ steps in ")  # printed by train when its model is written
ENOUGH_FREE_MIB = 64  # tolerance below the amount that was free before, because the driver keeps some


@dataclass(frozen=True)
class Lifetime:
    """One run until its end. Times are in seconds; None: the run did not reach this point."""

    run: Run
    first_step_s: float | None  # from the start of rp-launch
    free_mib: int | None        # after STEPS steps, while the worker is running
    exit_s: float | None        # from the end of training until rp-launch and all other processes have ended
    free_again_s: float | None  # from the end of training until the GPU's memory is free as before


def wait_until(happened, process: subprocess.Popen | None, end: float) -> bool:
    """Waits until happened() is true. Returns False if the time is over or the process ends before."""
    while not happened():
        if time.monotonic() > end or (process and process.poll() is not None):
            return happened()
        time.sleep(0.02)
    return True


def observed(bench: Bench, words: list[str], output: Path, seconds: float, free_mib=free_gpu_mib) -> Lifetime:
    """Starts the run and observes it."""
    before_mib, begin = free_mib(), time.monotonic()
    end, log_path = begin + bench.seconds(seconds), output.with_suffix(".log")
    first_step_s = after_steps_mib = exit_s = free_again_s = None
    run = Run(Result(None, "", "", 0), output)
    with open(log_path, "w", encoding="utf-8") as log:
        process = bench.start(words, stdout=log, stderr=log)
        try:
            if wait_until(lambda: len(run.metrics()) >= 1, process, end):
                first_step_s = time.monotonic() - begin
            if wait_until(lambda: len(run.metrics()) >= STEPS, process, end) and process.poll() is None:
                after_steps_mib = free_mib()
            if wait_until(lambda: END_OF_TRAINING.search(log_path.read_text(errors="replace")), process, end):
                ended = time.monotonic()
                if wait_until(lambda: process.poll() is not None and not processes_with(output), None, end):
                    exit_s = time.monotonic() - ended
                if wait_until(lambda: free_mib() >= before_mib - ENOUGH_FREE_MIB, None, end):
                    free_again_s = time.monotonic() - ended
            code = process.poll()
        finally:
            bench.end_group(process)
    result = Result(code, "", log_path.read_text(errors="replace"), time.monotonic() - begin)
    bench.note(words, result)
    return Lifetime(Run(result, output), first_step_s, after_steps_mib, exit_s, free_again_s)


def margin_mib(store_bytes: int) -> int:
    """Computes the same as CudaDevice::margin_bytes(): 1 GiB, and 8 bytes of the GPU's page tables
    for each registered page."""
    return ((1 << 30) + store_bytes // 4096 * 8) >> 20


def staged_outcome(run: Run) -> Outcome:
    """Reports for each step, which is one round, the bytes that went through the pinned buffer
    because their memory was not registered."""
    staged = [step.get("staged_bytes") for step in run.metrics()]
    if not staged or None in staged:
        return Outcome(why="train does not say how many bytes were staged")
    return Outcome(", ".join(f"{count / 2**20:.0f} MiB" for count in staged))


def warm_up_outcome(life: Lifetime, cold: Lifetime) -> Outcome:
    """Reports how long the warm-up of the first run took, and the time to the first step of a run without warm-up."""
    told = WARM_UP.search(life.run.result.err)
    if not told or cold.first_step_s is None:
        return Outcome(why="the run says nothing of a warm-up" if not told else f"without it: {cold.run.result.said}", has_failed=True)
    return Outcome(f"{float(told[1]):.1f} s; without it the first step ends after {cold.first_step_s:.1f} s")


def outcomes_of(life: Lifetime, margin: int, what: str) -> list[Outcome]:
    unknown = Outcome(why=f"the run ended with {life.run.result.code} after {life.run.result.seconds:.0f} s: {life.run.result.said}",
                      has_failed=life.run.result.code is not None)
    first = Outcome(f"{life.first_step_s:.1f} s ({what})") if life.first_step_s is not None else unknown
    free = Outcome(f"{life.free_mib} of {margin} MiB ({what})") if life.free_mib is not None else unknown
    staged = staged_outcome(life.run) if life.first_step_s is not None else unknown
    ends = unknown
    if life.exit_s is not None:
        again = f"after {life.free_again_s:.1f} s" if life.free_again_s is not None else "not in time"
        ends = Outcome(f"processes gone after {life.exit_s:.1f} s, memory free again {again}", life.free_again_s is not None)
    return [first, free, staged, ends]


@check("lifetime", ("start of `rp-launch` -> end of the first step, 1.7B-shaped", A_FIGURE),
       ("warm-up before it, and the first step's end without one", A_FIGURE),
       ("free memory of the GPU after three steps, of the margin that a worker leaves", A_FIGURE),
       ("bytes of copies that went through the pinned buffer, of each round", A_FIGURE),
       ("end of training -> all processes gone, the GPU's memory free again", "it is free again"))
def lifetime(bench: Bench) -> list[Outcome]:
    layers, sequences, length = layers_that_fit("1.7b", most=8), 8, 2048
    model, data = empty_model(bench, "1.7b", layers), random_data(bench, "1.7b", length, sequences)
    output = bench.scratch / "runs" / "lifetime"
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(bench.scratch).free < 1.2 * bytes_of("1.7b", layers, 2):
        raise NotRun(f"{bench.scratch} has no room for the trained model")

    def words(*options: str) -> list[str]:
        return command(bench, output, ["--gpus", "0,", *options], model, data, max_steps=STEPS, batch_size=sequences, num_microbatches=4,
                       sequence_length=length, dtype="bf16")

    life = observed(bench, words(), output, bench.all_but(35, 30))
    # Weights and their gradients are registered, with 2 bytes each.
    outcomes = outcomes_of(life, margin_mib(bytes_of("1.7b", layers, 4)), f"{shape_text('1.7b', layers)}, {sequences} x {length} tokens")
    shutil.rmtree(output, ignore_errors=True)  # the model occupies 2 bytes per parameter
    outcomes.insert(1, warm_up_outcome(life, observed(bench, words("--warm-up", "0"), output, bench.all_but(5, 30))))
    shutil.rmtree(output, ignore_errors=True)
    return outcomes
