"""Checks that runs whose processes are killed or stopped end with the bits of a run that was left alone."""

import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench import Bench, Result
from checks import NotRun, Outcome, check
from runs import SMALL, Run, command, pid_of, processes_with, tiny
from training_checks import jobs

SIZES = {"batch_size": 8, "num_microbatches": 4, "sequence_length": 32}
LAUNCH = ["--gpus", "0,0,0,0", *SMALL]
FIRST_STEPS = 60  # measured, to make runs as long as wanted
SECONDS_OF_STEPS = 10  # long enough for some replacements, each of which needs seconds until it works
SECONDS = 45  # of one run with its start


@dataclass(frozen=True)
class Case:
    """A run with four workers on one GPU, some of whose processes are harmed, one after another."""

    name: str
    what: str
    roles: tuple[str, ...]  # environment variables of these processes, in the order in which they are harmed
    harm: signal.Signals = signal.SIGKILL
    report: str = "was killed by SIGKILL"  # of rp-launch, for each harm
    launch: tuple[str, ...] = ()
    settings: dict = field(default_factory=dict)


WORKERS = ("RP_WORKER=2", "RP_WORKER=0", "RP_WORKER=3")
CASES = (
    Case("memops", "three workers of a synchronous run on one GPU are killed, one after another, `--signals memops`", WORKERS),
    Case("events", "three workers of an asynchronous run on one GPU are killed, one after another, `--signals events`", WORKERS,
         launch=("--signals", "events"), settings={"async": True}),
    Case("stop", "a worker on one GPU is stopped by a signal, `--wait-timeout 2`", WORKERS[:1], signal.SIGSTOP, "is stopped by",
         ("--wait-timeout", "2")),
    Case("context", "two workers on one GPU lose their contexts, by a kernel that writes to an illegal address", WORKERS[:2], signal.SIGUSR2,
         "ended with exit code 71"),
    Case("coordinator", "the coordinator of a run on one GPU is killed", ("RP_ROLE=coordinator",)),
)


def library_that_loses_contexts(bench: Bench) -> Path:
    """Returns the library for LD_PRELOAD, compiled here. With it, a worker loses its context when it gets SIGUSR2."""
    library = bench.scratch / "lose_context.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NotRun("there is no C compiler")
    words = [compiler, "-shared", "-fPIC", "-o", library, Path(__file__).with_name("lose_context.c"), "-ldl", "-lpthread"]
    if subprocess.run(words, capture_output=True).returncode != 0:
        raise NotRun("lose_context.c cannot be compiled")
    return library


def works(pid: int, role: str) -> bool:
    """Returns whether a worker serves, or, if it is a coordinator, whether it runs."""
    if not role.startswith("RP_WORKER"):
        return True
    try:
        return any(task.read_text().strip() == "rp-compute" for task in Path(f"/proc/{pid}/task").glob("*/comm"))
    except OSError:
        return False  # it has ended


def working(output: Path, role: str) -> int | None:
    """Returns the process with this role if it works."""
    try:
        pid = pid_of(output, role)
    except RuntimeError:
        return None
    return pid if works(pid, role) else None


def harmed_run(bench: Bench, case: Case, steps: int) -> tuple[Run, int, list[float]]:
    """Runs the training and harms one process after each eighth of the steps. Returns the run, how many were harmed, and
    the seconds from the harm until the replacement works, of those whose replacement worked before the run ended."""
    sample = bench.tiny_model()
    output = bench.scratch / "runs" / f"replay-{case.name}"
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    launch = [*LAUNCH, "--max-restarts", "100", *case.launch]
    words = command(bench, output, launch, sample / "model", sample / "data.tokens", max_steps=steps, **SIZES, **case.settings)
    log_path = output.with_suffix(".log")
    begin, harmed, seconds = time.monotonic(), {}, []  # harmed: role -> (process, time)
    end = begin + bench.seconds(SECONDS)
    left = list(case.roles)
    run = Run(Result(None, "", "", 0), output)
    variables = {"LD_PRELOAD": str(library_that_loses_contexts(bench))} if case.harm == signal.SIGUSR2 else {}
    with open(log_path, "w", encoding="utf-8") as log:
        process = bench.start(words, stdout=log, stderr=log, env=os.environ | variables)
        try:
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
                for role, (pid, since) in list(harmed.items()):
                    if working(output, role) not in (None, pid):
                        seconds.append(time.monotonic() - since)
                        del harmed[role]
                is_time = len(run.metrics()) >= (len(case.roles) - len(left) + 1) * steps // 8
                if left and is_time and (pid := working(output, left[0])) is not None:
                    harmed[left.pop(0)] = (pid, time.monotonic())
                    os.kill(pid, case.harm)
        finally:
            code = process.poll()
            bench.end_group(process)
    result = Result(code, "", log_path.read_text(errors="replace"), time.monotonic() - begin)
    bench.note(words, result)
    return Run(result, output), len(case.roles) - len(left), seconds


def outcome_of_harm(bench: Bench, case: Case, alone: Run) -> Outcome:
    run, harmed, seconds = harmed_run(bench, case, len(alone.losses()))
    if run.result.code != 0:
        ended = f"did not end within {run.result.seconds:.0f} s" if run.result.code is None else f"ended with {run.result.code}"
        return Outcome(why=f"{harmed} of {len(case.roles)} harmed, then it {ended}: {run.result.said}", has_failed=True)
    if left := processes_with(run.output):
        return Outcome(why=f"{len(left)} processes are left", has_failed=True)
    (losses, sha), (losses_alone, sha_alone) = run.bits(), alone.bits()
    reports = len(re.findall(rf"^rp-launch: .*(?:{case.report})", run.result.err, re.MULTILINE))
    until = f"; until a replacement works: median {statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s" if seconds else ""
    figure = f"SHA-256 {sha[:12]}, {sha_alone[:12]}; {harmed} of {len(case.roles)} harmed, {reports} reported{until}"
    is_met = (losses, sha) == (losses_alone, sha_alone) and harmed == len(case.roles) <= reports
    return Outcome(figure, is_met, "" if losses == losses_alone else "the losses differ")


def run_alone(bench: Bench, case: Case, steps: int) -> Run:
    return tiny(bench, f"replay-{case.name}-alone", LAUNCH, SECONDS, max_steps=steps, **SIZES, **case.settings)


@check("replay", *((case.what, "the bits of a run without harm") for case in CASES))
def harmed_runs(bench: Bench) -> list[Outcome]:
    steps = round(SECONDS_OF_STEPS / run_alone(bench, CASES[0], FIRST_STEPS).step_seconds())

    def outcome_of(case: Case) -> Outcome:
        try:
            return outcome_of_harm(bench, case, alone["async" in case.settings])
        except NotRun as reason:
            return Outcome(why=str(reason))
        except RuntimeError as reason:
            return Outcome(why=str(reason), has_failed=True)

    with ThreadPoolExecutor(min(2, jobs(bench))) as pool:
        alone = list(pool.map(lambda case: run_alone(bench, case, steps), CASES[:2]))
        return list(pool.map(outcome_of, CASES))
