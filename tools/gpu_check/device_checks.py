"""What programs over the driver alone show: kernels and their sanitizers, copies, signals, events of the dead."""

import json
import re

from bench import Bench, Result
from checks import A_FIGURE, NotRun, Outcome, check


def num_passed(result: Result) -> int:
    """Tests of a GoogleTest program; 0 if it left one out, as it does without a GPU."""
    passed, skipped = (re.search(rf"\[  {what} *\] (\d+) test", result.out) for what in ("PASSED", "SKIPPED"))
    return int(passed.group(1)) if passed and not skipped else 0


@check("kernels", ("kernel tests on the GPU", "all pass"))
def kernel_tests(bench: Bench) -> list[Outcome]:
    result = bench.run([bench.program("cuda_kernels_test")], 60)
    if result.code is None:
        raise NotRun("the tests did not end within 60 s")
    passed = num_passed(result)
    return [Outcome(f"{passed} passed, exit code {result.code}", result.code == 0 and passed > 0, result.said)]


def sanitized(bench: Bench, tool: str, seconds: float) -> list[Outcome]:
    try:
        result = bench.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "86", bench.program("cuda_kernels_test")], seconds)
    except FileNotFoundError:
        raise NotRun("compute-sanitizer is not installed") from None
    if result.code is None:
        raise NotRun(f"{tool} did not end within {seconds:.0f} s")
    # racecheck says hazards, the others errors.
    found = re.search(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+) (?:error|hazard)", result.out + result.err)
    passed = num_passed(result)
    if not found or passed == 0:
        raise RuntimeError(f"no summary of {tool} or no test that passed, exit code {result.code}: {result.said}")
    return [Outcome(f"{found.group(1)} errors, {passed} tests passed", result.code == 0 and found.group(1) == "0")]


@check("kernels", ("kernel tests under compute-sanitizer memcheck", "0 errors"))
def memcheck(bench: Bench) -> list[Outcome]:
    return sanitized(bench, "memcheck", 45)


@check("kernels", ("kernel tests under compute-sanitizer synccheck", "0 errors"))
def synccheck(bench: Bench) -> list[Outcome]:
    return sanitized(bench, "synccheck", 45)


@check("kernels", ("kernel tests under compute-sanitizer racecheck", "0 errors"))
def racecheck(bench: Bench) -> list[Outcome]:
    return sanitized(bench, "racecheck", 90)


def lines_of(result: Result) -> list[dict]:
    """What a measuring program printed: a JSON object a line."""
    if result.code != 0:
        raise RuntimeError(f"exit code {result.code}: {result.said}")
    return [json.loads(line) for line in result.out.splitlines() if line.startswith("{")]


# As gpu_dead_events names them.
DEAD_CASES = {
    "never_recorded": "IPC event that was never recorded, its process killed",
    "before_completion": "IPC event recorded behind work, its process killed before the work was done",
    "after_completion": "IPC event recorded behind work, its process killed after the work was done",
    "word_before_completion": "word written by `cuStreamWriteValue64` behind work, its process killed before the work was done",
    "word_after_completion": "word written by `cuStreamWriteValue64` behind work, its process killed after the work was done",
}


@check("death", *((what, A_FIGURE) for what in DEAD_CASES.values()))
def dead_events(bench: Bench) -> list[Outcome]:
    found = {line["case"]: line for line in lines_of(bench.run([bench.program("gpu_dead_events")], 50))}
    outcomes = []
    for case in DEAD_CASES:
        line = found.get(case)
        what = {key: value for key, value in (line or {}).items() if key not in ("case", "driver_version")}
        outcomes.append(Outcome("; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in what.items()), why="no line of it"))
    return outcomes


RATIO = 0.95
BANDWIDTHS = {"up": "uploads", "down": "downloads", "both_up": "uploads, downloads at the same time",
              "both_down": "downloads, uploads at the same time"}


@check("bandwidth", *((f"{what} over the registered store, of plain pinned memory's bandwidth", f">= {RATIO}") for what in BANDWIDTHS.values()),
       ("uploads over unregistered memory, through the pinned buffer", A_FIGURE),
       ("downloads over unregistered memory, through the pinned buffer", A_FIGURE))
def store_bandwidth(bench: Bench) -> list[Outcome]:
    outcomes = []
    found = {line["what"]: line for line in lines_of(bench.run([bench.program("gpu_store_bandwidth")], 60))}
    for key in BANDWIDTHS:
        line = found[key]
        figure = f"{line['ratio']:.3f} ({line['store_gbs']:.1f} of {line['pinned_gbs']:.1f} GB/s, {line['store']})"
        outcomes.append(Outcome(figure, line["ratio"] >= RATIO))
    for key in ("up", "down"):
        line = found[key]
        outcomes.append(Outcome(f"{line['staged_gbs']:.1f} GB/s, {line['staged_gbs'] / line['pinned_gbs']:.3f} of pinned memory's"))
    return outcomes


@check("signals", ("end of a download -> start of the other process's upload: host functions", A_FIGURE),
       ("end of a download -> start of the other process's upload: `--signals memops`", A_FIGURE),
       ("end of a download -> start of the other process's upload: `--signals events`", A_FIGURE),
       ("bandwidth of a copy beside a stream that polls a word of the host", A_FIGURE))
def signal_latencies(bench: Bench) -> list[Outcome]:
    found = {line["what"]: line for line in lines_of(bench.run([bench.program("gpu_signals")], 50))}
    outcomes = [Outcome(f"median {found[name]['median_us']:.1f} us, p99 {found[name]['p99_us']:.1f} us") for name in ("host", "words", "events")]
    polling = found["polling"]
    outcomes.append(Outcome(f"{polling['ratio']:.3f} of that without ({polling['with_gbs']:.1f} of {polling['without_gbs']:.1f} GB/s)"))
    return outcomes
