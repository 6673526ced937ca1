"""What programs over the driver alone show: kernels and their sanitizers, copies, signals, events of the dead."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from bench import Bench, Result
from checks import A_FIGURE, NotRun, Outcome, check


def num_passed(result: Result) -> int:
    """Tests of a GoogleTest program; 0 if it left one out, as it does without a GPU."""
    passed, skipped = (re.search(rf"\[  {what} *\] (\d+) test", result.out) for what in ("PASSED", "SKIPPED"))
    return int(passed.group(1)) if passed and not skipped else 0


def trouble_of(result: Result) -> str:
    """Which tests of a GoogleTest program failed, or why it left them out; else the end of what it said."""
    failed = list(dict.fromkeys(re.findall(r"^\[  FAILED  \] ([A-Za-z_][\w/.]+)", result.out, re.MULTILINE)))
    if failed:
        return f"{', '.join(failed[:5])}{' ...' if len(failed) > 5 else ''} failed"
    skipped = re.search(r"^(?:child: )?(no CUDA device: .*)$", result.err + result.out, re.MULTILINE)
    return skipped.group(1) if skipped else result.said


def outcome_of_tests(result: Result) -> Outcome:
    """Of a GoogleTest program all of whose tests must pass."""
    if result.code is None:
        raise NotRun(f"the tests did not end within {result.seconds:.0f} s")
    passed = num_passed(result)
    is_met = result.code == 0 and passed > 0
    return Outcome(f"{passed} passed, exit code {result.code}", is_met, "" if is_met else trouble_of(result))


@check("kernels", ("kernel tests on the GPU", "all pass"))
def kernel_tests(bench: Bench) -> list[Outcome]:
    return [outcome_of_tests(bench.run([bench.program("cuda_kernels_test")], 60))]


@check("kernels", ("LibTorch's kernels as the models call them, beside fp64: packed documents, grouped products with experts without rows", "all pass"))
def torch_tests(bench: Bench) -> list[Outcome]:
    return [outcome_of_tests(bench.run([bench.program("torch_on_gpu_test")], 60))]


def sanitized(bench: Bench, tool: str, seconds: float) -> list[Outcome]:
    # A sanitizer waits for each kernel by itself: what one stream does beside another is no question for it.
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "86", bench.program("cuda_kernels_test"), "--gtest_filter=-FirstLaunch.*"]
    try:
        result = bench.run(words, seconds)
    except FileNotFoundError:
        raise NotRun("compute-sanitizer is not installed") from None
    if result.code is None:
        raise NotRun(f"{tool} did not end within {result.seconds:.0f} s")
    # racecheck says hazards, the others errors.
    found = re.search(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+) (?:error|hazard)", result.out + result.err)
    passed = num_passed(result)
    if not found or passed == 0:
        raise RuntimeError(f"no summary of {tool} or no test that passed, exit code {result.code}: {trouble_of(result)}")
    is_met = result.code == 0 and found.group(1) == "0"
    return [Outcome(f"{found.group(1)} errors, {passed} tests passed", is_met, "" if is_met else trouble_of(result))]


@check("sanitizer", ("kernel tests under compute-sanitizer memcheck", "0 errors"))
def memcheck(bench: Bench) -> list[Outcome]:
    return sanitized(bench, "memcheck", 45)


@check("sanitizer", ("kernel tests under compute-sanitizer synccheck", "0 errors"))
def synccheck(bench: Bench) -> list[Outcome]:
    return sanitized(bench, "synccheck", 45)


@check("sanitizer", ("kernel tests under compute-sanitizer racecheck", "0 errors"))
def racecheck(bench: Bench) -> list[Outcome]:
    return sanitized(bench, "racecheck", 60)


@dataclass(frozen=True)
class Printed:
    """What a measuring program printed, a JSON object a line, by the name in each."""

    lines: dict[str, dict]
    trouble: str  # of a line that is not there
    has_failed: bool

    def outcome(self, name: str, text: Callable[[dict], str], is_met: Callable[[dict], bool] = lambda line: True) -> Outcome:
        """Of one line, if it was printed: what came before a failure counts."""
        line = self.lines.get(name)
        if not line:
            return Outcome(why=self.trouble, has_failed=self.has_failed)
        try:
            return Outcome(text(line), is_met(line))
        except (KeyError, TypeError, ValueError) as error:  # a figure that is missing, or no number; the other lines stay
            return Outcome(why=f"{type(error).__name__}: {error} in {line}", has_failed=True)


def printed(result: Result, key: str) -> Printed:
    lines = {line[key]: line for line in map(json.loads, re.findall(r"^\{.*\}$", result.out, re.MULTILINE))}
    if result.code is None:
        return Printed(lines, f"the program did not end within {result.seconds:.0f} s", False)
    if result.code == 69:
        return Printed(lines, result.said, False)
    return Printed(lines, f"exit code {result.code}: {result.said}" if result.code else "no line of it", True)


# As gpu_dead_events names them.
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
    # A wait that blocks is watched for some seconds: most of the part, less what the checks behind need.
    found = printed(bench.run([bench.program("gpu_dead_events")], bench.all_but(30)), "case")
    return [found.outcome(case, dead_text) for case in DEAD_CASES]


RATIO = 0.95
BANDWIDTHS = {"up": "uploads", "down": "downloads", "both_up": "uploads, downloads at the same time",
              "both_down": "downloads, uploads at the same time"}


def ratio_text(line: dict) -> str:
    return f"{line['ratio']:.3f} ({line['store_gbs']:.1f} of {line['pinned_gbs']:.1f} GB/s, {line['store']})"


def staged_text(line: dict) -> str:
    return f"{line['staged_gbs']:.1f} GB/s, {line['staged_gbs'] / line['pinned_gbs']:.3f} of pinned memory's"


@check("bandwidth", *((f"{what} over the registered store, of plain pinned memory's bandwidth", f">= {RATIO}") for what in BANDWIDTHS.values()),
       ("uploads over unregistered memory, through the pinned buffer", A_FIGURE),
       ("downloads over unregistered memory, through the pinned buffer", A_FIGURE))
def store_bandwidth(bench: Bench) -> list[Outcome]:
    found = printed(bench.run([bench.program("gpu_store_bandwidth")], 60), "what")
    outcomes = [found.outcome(key, ratio_text, lambda line: line["ratio"] >= RATIO) for key in BANDWIDTHS]
    return outcomes + [found.outcome(key, staged_text) for key in ("up", "down")]


# Before the latencies of what may not work.
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
       ("bandwidth of a copy beside a stream that polls a word of the host", A_FIGURE))
def signal_latencies(bench: Bench) -> list[Outcome]:
    found = printed(bench.run([bench.program("gpu_signals")], 50), "what")
    return [found.outcome(name, latency_text) for name in ("host", "words", "events")] + [found.outcome("polling", polling_text)]
