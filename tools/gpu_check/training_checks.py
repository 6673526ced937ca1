"""Checks with trainings of a tiny model: whole-program tests on a GPU, equal bits, equality with
the CPU's losses, a killed worker."""

import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from bench import ROOT, Bench, Result
from checks import NotRun, Outcome, check
from runs import SMALL, command, free_host_bytes, pid_of, processes_with, tiny

LEAST_HOST_BYTES = 32 << 30  # with less, processes of several runs that start at once may use up the host's memory


def jobs(bench: Bench) -> int:
    """Returns how many runs can be executed at once, each with up to four workers of 2.5 GiB on the GPU."""
    if free_host_bytes() < LEAST_HOST_BYTES:
        return 1
    return max(1, min(4, bench.card.memory_mib // 12000))


# Tests of tests/system that use a device, the most informative first. Tests about host memory,
# refused inputs and files are omitted, because they do not involve a device.
MATRIX = [f"train_bits_test.py BitsTest.test_{mode}_{workers}_workers" for workers in (2, 1, 4) for mode in ("sync", "async")]
TESTS = [
    "train_bits_test.py SettingsBitsTest.test_several_rounds_a_step",
    "train_bits_test.py SettingsBitsTest.test_several_rounds_a_step_async",
    "train_bits_test.py SettingsBitsTest.test_fp32",
    "train_bits_test.py SettingsBitsTest.test_schedule_decay_and_no_clipping",
    "train_bits_test.py SettingsBitsTest.test_recompute_by_layer_changes_no_bit",
    "train_bits_test.py SettingsBitsTest.test_the_check_of_consistency_finds_nothing_and_changes_no_bit",
    "train_bits_test.py SettingsBitsTest.test_the_first_loss_does_not_depend_on_microbatches_or_rounds",
    "train_bits_test.py ResumeTest.test_sync",
    "train_bits_test.py ResumeTest.test_async",
    "train_bits_test.py ResumeTest.test_fp32_and_several_rounds",
    "train_endings_test.py SignalTest.test_int_ends_with_130_and_a_checkpoint",
    "train_endings_test.py SignalTest.test_term_ends_with_75_and_the_run_goes_on_from_there",
    "bits_test.py BitsTest.test_2_workers",
    "bits_test.py BitsTest.test_4_workers",
    *MATRIX,
]

PLANS = {"even": "forward 0-2 3-5 | fused 6-7 | backward 3-5 0-2",
         "layer_by_layer": "forward 0-0 1-1 2-4 5-6 | fused 7-7 | backward 6-6 4-5 1-3 0-0"}
# Modes of training, each with options of rp-launch and options of train.
MODES = {
    "sync": ([], {}),
    "async": ([], {"async": True}),
    "rounds": ([], {"rounds_per_step": 2}),
    "rounds_async": ([], {"rounds_per_step": 2, "async": True}),
    "by_layer": ([], {"recompute_grain": "layer"}),
    "schedule": ([], {"lr_schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1, "max_grad_norm": 0}),
    "packing": ([], {"no_packing": None}),
    "checked": (["--check-consistency"], {}),
    "no_prefetch": (["--prefetch", "0"], {}),
    "even": (["--plan", "even"], {}),
    "layer_by_layer": (["--plan", "layer_by_layer"], {"async": True}),
    "events": (["--signals", "events"], {}),
}
TOLERANCE = 1e-4


def test_environment(bench: Bench) -> dict[str, str]:
    return os.environ | {"RP_PROGRAMS": str(bench.program("rp-launch").parent), "RP_TINY_MODEL": str(bench.tiny_model()),
                         "RP_BITS_PROGRAM": str(bench.program("bits_program")), "RP_TEST_GPU": "0"}


@check("suite", ("system tests with `--device cuda`", "all pass"))
def system_tests(bench: Bench) -> list[Outcome]:
    environment = test_environment(bench)

    def run(test: str) -> str:
        file, case = test.split()
        if bench.left < 60:
            return "not reached"
        result = bench.run([bench.python(), ROOT / "tests" / "system" / file, case], bench.all_but(50), env=environment)
        said = re.search(r"^\w*(?:Error|Exception): (.*)", result.err, re.MULTILINE)
        failure = f"{case} failed: {said.group(1)[:120] if said else result.said[:120]}"
        return "passed" if result.code == 0 else "not reached" if result.code is None else failure

    with ThreadPoolExecutor(jobs(bench)) as pool:
        results = list(pool.map(run, TESTS))
    passed = results.count("passed")
    bad = [result for result in results if result not in ("passed", "not reached")]
    figure = f"{passed} of {len(TESTS)} passed, {results.count('not reached')} not reached in time"
    return [Outcome(figure, passed == len(TESTS), "; ".join(bad[:3]) or "none failed, but time was over")]


def largest_difference(a: list[float], b: list[float]) -> float:
    """Returns the largest relative difference of two lists of losses."""
    if len(a) != len(b) or not a:
        raise RuntimeError(f"{len(a)} and {len(b)} losses")
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def mode_difference(bench: Bench, name: str) -> float:
    """Returns the largest relative difference of one mode's fp32 losses on the GPU from those on the CPU."""
    launch, settings = MODES[name]
    launch = list(launch)
    if launch[:1] == ["--plan"]:
        plan = bench.scratch / f"{name}.plan"
        plan.write_text(PLANS[launch[1]] + "\n")
        launch[1] = str(plan)
    on_gpu = tiny(bench, f"{name}-gpu", ["--gpus", "0,0", *SMALL, *launch], dtype="fp32", **settings)
    launch = [] if launch[:1] == ["--signals"] else launch
    on_cpu = tiny(bench, f"{name}-cpu", ["--workers", "2", *launch], dtype="fp32", **settings)
    return largest_difference(on_gpu.losses(), on_cpu.losses())


@check("suite", ("trainings in every mode, compared with the `cpu` device, fp32: largest relative difference of a loss", f"<= {TOLERANCE:g}"))
def modes_beside_the_cpu(bench: Bench) -> list[Outcome]:
    def run(name: str) -> float | str:
        try:
            return mode_difference(bench, name)
        except (NotRun, RuntimeError) as reason:
            return f"{name}: {reason}"

    with ThreadPoolExecutor(jobs(bench)) as pool:
        results = dict(zip(MODES, pool.map(run, MODES)))
    differences = {name: result for name, result in results.items() if isinstance(result, float)}
    troubles = [result for result in results.values() if isinstance(result, str)]
    if not differences:
        raise RuntimeError(troubles[0])
    worst = max(differences, key=differences.__getitem__)
    figure = f"{differences[worst]:.2e} ({worst}), {len(differences)} of {len(MODES)} modes"
    return [Outcome(figure, differences[worst] <= TOLERANCE and not troubles, "; ".join(troubles))]


WORKERS = ("0,", "0,0", "0,0,0,0")


def equal_bits(bench: Bench, mode: str, **settings) -> list[Outcome]:
    results = [tiny(bench, f"bits-{mode}-{gpus.count('0')}", ["--gpus", gpus, *SMALL], **settings).bits() for gpus in WORKERS]
    figure = f"SHA-256 {', '.join(sha[:12] for _, sha in results)}; last loss {', '.join(losses[-1] for losses, _ in results)}"
    return [Outcome(figure, all(result == results[0] for result in results))]


@check("bits", ("`--gpus 0`, `0,0`, `0,0,0,0`: losses and weights of a synchronous run", "equal bits"))
def equal_bits_of_synchronous_runs(bench: Bench) -> list[Outcome]:
    return equal_bits(bench, "sync")


@check("bits", ("`--gpus 0`, `0,0`, `0,0,0,0`: losses and weights of an asynchronous run", "equal bits"))
def equal_bits_of_asynchronous_runs(bench: Bench) -> list[Outcome]:
    return equal_bits(bench, "async", **{"async": True})


@check("bits", ("`--gpus 0,0` compared with the `cpu` device, fp32: largest relative difference of a loss", f"<= {TOLERANCE:g}"))
def beside_the_cpu(bench: Bench) -> list[Outcome]:
    difference = mode_difference(bench, "sync")
    return [Outcome(f"{difference:.2e}", difference <= TOLERANCE)]


@check("bits", ("two runs with the same settings on one GPU", "equal bits"))
def the_same_twice(bench: Bench) -> list[Outcome]:
    results = [tiny(bench, f"again-{i}", ["--gpus", "0,0", *SMALL]).bits() for i in range(2)]
    return [Outcome(f"SHA-256 {', '.join(sha[:12] for _, sha in results)}", results[0] == results[1])]


def killed_worker(bench: Bench, signals: str) -> Outcome:
    """Kills one of four workers once the run has made some steps."""
    sample = bench.tiny_model()
    output = bench.scratch / "runs" / f"death-{signals}"
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    words = command(bench, output, ["--gpus", "0,0,0,0", "--signals", signals, "--on-worker-failure", "abort", *SMALL], sample / "model", sample / "data.tokens",
                    max_steps=1000000, batch_size=8, num_microbatches=4, sequence_length=32)
    process = bench.start(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        metrics = output / "metrics.jsonl"
        end = time.monotonic() + bench.seconds(40)
        while process.poll() is None and time.monotonic() < end and not (metrics.exists() and metrics.read_text().count("\n") >= 3):
            time.sleep(0.02)
        if process.poll() is not None:
            raise RuntimeError(f"the run ended with {process.returncode} before anything was killed: {process.communicate()[1].strip()[-200:]}")
        begin = time.monotonic()
        os.kill(pid_of(output, "RP_WORKER=2"), signal.SIGKILL)
        err = process.communicate(timeout=30)[1]
    finally:
        bench.end_group(process)
    seconds = time.monotonic() - begin
    bench.note(words, Result(process.returncode, "", err, seconds))
    names_it = "worker 2" in err
    figure = f"exit code {process.returncode} after {seconds:.1f} s, the message {'names' if names_it else 'does not name'} worker 2"
    return Outcome(figure, process.returncode == 137 and names_it and seconds < 10 and not processes_with(output), err.strip()[-200:])


@check("death", ("worker 2 of 4 on one GPU killed in mid-step, `--signals memops`", "exit code 137 within 10 s, its name, no process left"))
def killed_with_words(bench: Bench) -> list[Outcome]:
    return [killed_worker(bench, "memops")]


@check("death", ("worker 2 of 4 on one GPU killed in mid-step, `--signals events`", "exit code 137 within 10 s, its name, no process left"))
def killed_with_events(bench: Bench) -> list[Outcome]:
    return [killed_worker(bench, "events")]
