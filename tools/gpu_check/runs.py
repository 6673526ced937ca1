"""Runs train under rp-launch, and creates the models of random weights for these runs."""

import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import host_memory
from bench import ROOT, Bench, Result
from checks import NotRun

sys.path.insert(0, str(ROOT / "tools"))

import make_random_model  # noqa: E402


SMALL = ["--gpu-memory", "2G"]  # so that several runs fit on one GPU


@dataclass(frozen=True)
class Run:
    result: Result
    output: Path

    def metrics(self) -> list[dict]:
        path = self.output / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def losses(self) -> list[float]:
        return [step["loss"] for step in self.metrics()]

    def bits(self) -> tuple[list[str], str]:
        """Returns the losses with all digits, and the checksum of the trained weights."""
        texts = [line.split('"loss": ')[1].split(",")[0] for line in (self.output / "metrics.jsonl").read_text().splitlines()]
        digest = hashlib.sha256()
        for file in sorted((self.output / "final").glob("*.safetensors")):
            digest.update(file.read_bytes())
        return texts, digest.hexdigest()

    def step_seconds(self) -> float:
        """Returns the median time of a step, without the first two."""
        steps = [step["seconds"] for step in self.metrics()[2:]]
        if not steps:
            raise RuntimeError(f"no steps to measure; {self.result.said}")
        return statistics.median(steps)


def command(bench: Bench, output: Path, launch: list, model: Path, data: Path, **settings) -> list:
    """Returns the command line. `settings`: by option name; True for a switch, None to omit a default."""
    values = {"model": model, "data": data, "output": output, "learning_rate": "1e-3", "warmup_steps": 0, "lr_schedule": "constant",
              "no_packing": True, "seed": 1, "save_every": "never"} | settings
    words = [bench.program("rp-launch"), *launch, bench.program("train")]
    for name, value in values.items():
        if value is not None:
            words += ["--" + name.replace("_", "-")] + ([] if value is True else [value])
    return [str(word) for word in words]


def train(bench: Bench, name: str, launch: list, model: Path, data: Path, seconds: float = 60, **settings) -> Run:
    """Runs train to its end, but at most for `seconds`."""
    output = bench.scratch / "runs" / name
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    return Run(bench.run(command(bench, output, launch, model, data, **settings), seconds), output)


def tiny(bench: Bench, name: str, launch: list, seconds: float = 60, **settings) -> Run:
    """Runs the small training of the whole-program tests. It must end with code 0."""
    sample = bench.tiny_model()
    values = {"max_steps": 4, "batch_size": 8, "num_microbatches": 3, "sequence_length": 32} | settings
    run = train(bench, name, launch, sample / "model", sample / "data.tokens", seconds, **values)
    if run.result.code != 0:
        raise RuntimeError(f"train {name} ended with {run.result.code}: {run.result.said}")
    return run


def train_until(bench: Bench, name: str, launch: list, model: Path, data: Path, steps: int, seconds: float, kills_coordinator: bool = False,
                says: str | None = None, **settings) -> Run:
    """Kills the run once it has made `steps` steps, because writing a checkpoint of a large model
    would take longer than the steps. With `kills_coordinator`, kills the coordinator instead, so
    that rp-launch can write a trace. With `says`, the run makes only that many steps, and is killed
    when its output matches this regular expression, before it writes its model."""
    output = bench.scratch / "runs" / name
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    if kills_coordinator:
        launch = [*launch, "--on-coordinator-failure", "abort"]
    words = command(bench, output, launch, model, data, max_steps=steps if says else 1000000, **settings)
    begin = time.monotonic()
    end = begin + bench.seconds(seconds)
    log_path = output.parent / f"{name}.log"

    def has_all() -> bool:
        return bool(re.search(says, log_path.read_text(errors="replace"))) if says else len(run.metrics()) >= steps

    with open(log_path, "w", encoding="utf-8") as log:
        process = bench.start(words, stdout=log, stderr=log)
        try:
            run = Run(Result(None, "", "", 0), output)
            while process.poll() is None and time.monotonic() < end and not has_all():
                time.sleep(0.2)
            code = process.poll()
            if kills_coordinator and code is None:
                kill_coordinator(process, output)
        finally:
            bench.end_group(process)
            wait_until_gone(output)
    result = Result(0 if has_all() else code, "", log_path.read_text(errors="replace"), time.monotonic() - begin)
    bench.note(words, result)
    return Run(result, output)


def kill_coordinator(process: subprocess.Popen, output: Path) -> None:
    """Kills the coordinator, and waits until rp-launch has ended, at most 30 seconds."""
    try:
        os.kill(pid_of(output, "RP_ROLE=coordinator"), signal.SIGKILL)
        process.wait(timeout=30)
    except (OSError, RuntimeError, subprocess.TimeoutExpired):
        pass  # rp-launch ends on its own, or is killed later; the reader of the trace reports if it is missing


def processes_with(word: Path | str) -> list[int]:
    """Returns the running processes that have `word` in their command lines."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(word).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue  # the process has ended
    return found


def pid_of(output: Path, variable: str) -> int:
    """Returns the process of a run that was started with this environment variable, e.g. `RP_WORKER=2`."""
    for pid in processes_with(output):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # the process has ended
        if variable.encode() in environment:
            return pid
    raise RuntimeError(f"no process with {variable} was found")


def wait_until_gone(output: Path) -> None:
    """Waits until the run's processes have ended, which frees their memory on the GPU."""
    end = time.monotonic() + 20
    while processes_with(output) and time.monotonic() < end:
        time.sleep(0.1)


# Files with limit, usage and statistics of a control group's memory, for version 2 and version 1.
GROUPS = (("memory.max", "memory.current", "memory.stat"),
          ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"))


def free_host_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that the kernel and the control group still allow. Counts the page cache
    as free, because it can be dropped."""
    free = host_memory.figure("MemAvailable", root)
    for names in GROUPS:
        limit, used, statistics_of = (root / "sys/fs/cgroup" / name for name in names)
        if not (limit.exists() and used.exists()) or not limit.read_text().strip().isdigit():
            continue
        stat = dict(line.split() for line in statistics_of.read_text().splitlines()) if statistics_of.exists() else {}
        cached = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
        free = min(free, int(limit.read_text()) - int(used.read_text()) + cached)
    return free


def bytes_of(shape: str, layers: int, of_each: int) -> int:
    """Returns the size of the host store with `of_each` bytes per parameter."""
    return of_each * make_random_model.num_parameters(make_random_model.config(shape, layers))


TRAINED, TRAINED_ASYNCHRONOUSLY, FROZEN = 16, 18, 2  # bytes per parameter


def layers_that_fit(shape: str, of_each: int = TRAINED, most: int | None = None, beside: int = 8 << 30) -> int:
    """Returns all layers of the shape if the model fits into host memory, otherwise as many as fit.
    `beside`: bytes for activations, programs and the page cache."""
    layers = min(make_random_model.SHAPES[shape]["num_hidden_layers"], most or 1 << 30)
    room = 0.85 * free_host_bytes() - beside
    while layers > 1 and bytes_of(shape, layers, of_each) > room:
        layers -= 1
    if layers < 2:
        raise NotRun(f"the host's memory ({free_host_bytes() >> 30} GiB are free) is too small for a {shape} model; if it grows as it is "
                     "used, RP_GPU_HOST_MEMORY says how far")
    return layers


def random_model(bench: Bench, shape: str, layers: int) -> Path:
    directory = bench.scratch / f"model-{shape}-{layers}"
    values = make_random_model.config(shape, layers)
    if not (directory / "config.json").exists():
        need = bytes_of(shape, layers, 2)
        if shutil.disk_usage(bench.scratch).free < 1.1 * need:
            raise NotRun(f"{bench.scratch} has no room for {need >> 30} GiB")
        make_random_model.write_model(directory, values)
    return directory


def empty_model(bench: Bench, shape: str, layers: int) -> Path:
    """Creates a model of zeros, which needs no disk space, for measurements that depend only on sizes."""
    directory = bench.scratch / f"empty-{shape}-{layers}"
    if not (directory / "config.json").exists():
        make_random_model.write_model(directory, make_random_model.config(shape, layers), is_zero=True)
    return directory


def random_data(bench: Bench, shape: str, sequence_length: int, num_sequences: int) -> Path:
    path = bench.scratch / f"data-{shape}-{sequence_length}-{num_sequences}.tokens"
    if not path.exists():
        make_random_model.write_data(path, make_random_model.SHAPES[shape]["vocab_size"], sequence_length, num_sequences)
    return path


def shape_text(shape: str, layers: int) -> str:
    of = make_random_model.SHAPES[shape]["num_hidden_layers"]
    return f"{layers} of {of} layers" if layers < of else f"{layers} layers"


def cores() -> int:
    return len(os.sched_getaffinity(0))
