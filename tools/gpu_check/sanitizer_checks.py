"""Runs a training and the project's kernels under NVIDIA's compute-sanitizer."""

import re
import shutil

from bench import Bench, Result
from checks import NotRun, Outcome, check
from printed import num_passed, trouble_of
from runs import SMALL, command

# Memory errors that memcheck reports, and CUDA calls that returned an error. Some of these are
# expected, since a run survives a refused registration.
WRONG_ACCESS = re.compile(r"^=+ (?:Invalid|Misaligned|Out-of-range|Leaked)", re.MULTILINE)
REFUSED_CALL = re.compile(r"^=+ Program hit (?:\w+) .*on CUDA API call to (\w+)|^=+ Program hit (\w+)", re.MULTILINE)

KERNEL_TESTS_S = 70.0  # seconds of the part that are reserved for the kernel tests under sanitizers


def memcheck_outcome(texts: list[str], code: int, said: str) -> Outcome:
    errors = sum(len(WRONG_ACCESS.findall(text)) for text in texts)
    refused = sorted({call or error for text in texts for call, error in REFUSED_CALL.findall(text)})
    figure = f"{errors} errors in {len(texts)} processes, exit code {code}"
    if refused:
        figure += f"; calls that gave errors: {', '.join(refused)}"
    return Outcome(figure, errors == 0 and code == 0 and bool(texts), said if code else "")


# Runs first: if the part's time runs out, this has checked all processes together, while the kernel
# tests check each kernel again.
@check("sanitizer", ("compute-sanitizer memcheck over a short training run", "0 errors"))
def memcheck_of_a_training(bench: Bench) -> list[Outcome]:
    sample = bench.tiny_model()
    logs = bench.scratch / "memcheck"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    sanitizer = ["compute-sanitizer", "--tool", "memcheck", "--target-processes", "all", "--log-file", str(logs / "%p.log")]
    words = command(bench, bench.scratch / "runs" / "memcheck", ["--gpus", "0,", *SMALL], sample / "model", sample / "data.tokens",
                    max_steps=1, batch_size=2, num_microbatches=2, sequence_length=16)
    try:
        result = bench.run(sanitizer + words, bench.all_but(KERNEL_TESTS_S * bench.scale, 60))
    except FileNotFoundError:
        raise NotRun("compute-sanitizer is not installed") from None
    if result.code is None:
        raise NotRun(f"the run under compute-sanitizer did not end within {result.seconds:.0f} s")
    texts = [file.read_text(errors="replace") for file in logs.glob("*.log")]
    bench.note(["memcheck's logs"], Result(result.code, "".join(texts), "", result.seconds))
    return [memcheck_outcome(texts, result.code, result.said)]


def sanitized(bench: Bench, tool: str, seconds: float) -> list[Outcome]:
    # A sanitizer waits for each kernel, so it cannot check what one stream does while another runs.
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "86", bench.program("cuda_kernels_test"), "--gtest_filter=-Launch.*"]
    try:
        result = bench.run(words, seconds)
    except FileNotFoundError:
        raise NotRun("compute-sanitizer is not installed") from None
    if result.code is None:
        raise NotRun(f"{tool} did not end within {result.seconds:.0f} s")
    # racecheck counts hazards, the other tools count errors.
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
