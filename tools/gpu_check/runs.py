"""Runs of train under rp-launch, and the models of random weights that they work on."""

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


SMALL = ["--gpu-memory", "2G"]  # so that several runs have room on one GPU


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
        """Losses to their last bit, and the checksum of the trained weights."""
        texts = [line.split('"loss": ')[1].split(",")[0] for line in (self.output / "metrics.jsonl").read_text().splitlines()]
        digest = hashlib.sha256()
        for file in sorted((self.output / "final").glob("*.safetensors")):
            digest.update(file.read_bytes())
        return texts, digest.hexdigest()

    def step_seconds(self) -> float:
        """Of a step, the median without the first two."""
        steps = [step["seconds"] for step in self.metrics()[2:]]
        if not steps:
            raise RuntimeError(f"no steps to measure; {self.result.said}")
        return statistics.median(steps)


def command(bench: Bench, output: Path, launch: list, model: Path, data: Path, **settings) -> list:
    """Settings by option name; True for a switch, None to leave one out."""
    values = {"model": model, "data": data, "output": output, "learning_rate": "1e-3", "warmup_steps": 0, "lr_schedule": "constant",
              "no_packing": True, "seed": 1, "save_every": "never"} | settings
    words = [bench.program("rp-launch"), *launch, bench.program("train")]
    for name, value in values.items():
        if value is not None:
            words += ["--" + name.replace("_", "-")] + ([] if value is True else [value])
    return [str(word) for word in words]


def train(bench: Bench, name: str, launch: list, model: Path, data: Path, seconds: float = 60, **settings) -> Run:
    """A run to its end, or for so long."""
    output = bench.scratch / "runs" / name
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    return Run(bench.run(command(bench, output, launch, model, data, **settings), seconds), output)


def tiny(bench: Bench, name: str, launch: list, seconds: float = 60, **settings) -> Run:
    """The small run of the whole-program tests; it must end with 0."""
    sample = bench.tiny_model()
    values = {"max_steps": 4, "batch_size": 8, "num_microbatches": 3, "sequence_length": 32} | settings
    run = train(bench, name, launch, sample / "model", sample / "data.tokens", seconds, **values)
    if run.result.code != 0:
        raise RuntimeError(f"train {name} ended with {run.result.code}: {run.result.said}")
    return run


def train_until(bench: Bench, name: str, launch: list, model: Path, data: Path, steps: int, seconds: float, kills_coordinator: bool = False,
                says: str | None = None, **settings) -> Run:
    """Ends the run by KILL once it has so many steps: a checkpoint of a large model would take longer than they do. By that of
    its coordinator where rp-launch has a trace to write. With `says` the run has so many steps and no more, and is ended when it has
    said that (a regular expression), before it writes its model."""
    output = bench.scratch / "runs" / name
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
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
    """Waits until rp-launch has ended after that, or 30 seconds."""
    try:
        os.kill(pid_of(output, "RP_ROLE=coordinator"), signal.SIGKILL)
        process.wait(timeout=30)
    except (OSError, RuntimeError, subprocess.TimeoutExpired):
        pass  # it ends by itself, or is killed; a trace that is missing is missed by its reader


def processes_with(word: Path | str) -> list[int]:
    """Running ones that have it in their command lines."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(word).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue  # it has ended
    return found


def pid_of(output: Path, variable: str) -> int:
    """The process of a run that was started with this variable, as `RP_WORKER=2`."""
    for pid in processes_with(output):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if variable.encode() in environment:
            return pid
    raise RuntimeError(f"no process with {variable} was found")


def wait_until_gone(output: Path) -> None:
    """Until a run's processes, and with them their memory of the GPU, are gone."""
    end = time.monotonic() + 20
    while processes_with(output) and time.monotonic() < end:
        time.sleep(0.1)


# Limit, use and statistics of a control group's memory, of both versions.
GROUPS = (("memory.max", "memory.current", "memory.stat"),
          ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"))


def free_host_bytes(root: Path = Path("/")) -> int:
    """What the kernel or a control group leaves. Pages of files that were read or written are free, too: they give way."""
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
    """Of the host store, with so many bytes a parameter."""
    return of_each * make_random_model.num_parameters(make_random_model.config(shape, layers))


TRAINED, TRAINED_ASYNCHRONOUSLY, FROZEN = 16, 18, 2  # bytes a parameter


def layers_that_fit(shape: str, of_each: int = TRAINED, most: int | None = None, beside: int = 8 << 30) -> int:
    """All layers of the shape if the model fits into the host's memory, else as many as do. `beside`: activations, programs, the
    page cache."""
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
    """Of zeros, which take no room on the disk: for what depends on sizes alone."""
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
