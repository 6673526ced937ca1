"""Shared by the tests of whole programs: runs of train under rp-launch, each with a deadline, and checks for what they
must not leave behind."""

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

PROGRAMS = Path(os.environ["RP_PROGRAMS"])  # the folder with rp-launch and train
SAMPLE = Path(os.environ["RP_TINY_MODEL"])  # created by make_tiny_model.py
DEADLINE_S = 60
NAME_S = 20  # A run has a name in /dev/shm only while it starts. That takes less time than this, even if other tests use the processors.
# For rp-launch: the death of a worker, or of the coordinator, ends the run.
ABORT = ["--on-worker-failure", "abort", "--on-coordinator-failure", "abort"]
GPU = os.environ.get("RP_TEST_GPU")  # if set, tests that set --workers run these workers on this GPU instead of the `cpu` device


def on_device(launch: list[str]) -> list[str]:
    """Returns the options of rp-launch, with the workers moved to the device of the tests: `--workers 2` becomes, for
    example, `--gpus 0,0`."""
    if GPU is None or "--workers" not in launch:
        return launch
    place = launch.index("--workers")
    gpus = ",".join([GPU] * int(launch[place + 1]))
    return [*launch[:place], "--gpus", gpus if "," in gpus else gpus + ",", "--gpu-memory", "2G", *launch[place + 2:]]


def settings(output: Path, **changes) -> list[str]:
    """Returns the arguments of a small run. `changes`: by option name; None omits an option, True is for a switch."""
    values = {"model": SAMPLE / "model", "data": SAMPLE / "data.tokens", "output": output, "max_steps": 4, "batch_size": 8,
              "num_microbatches": 3, "sequence_length": 32, "learning_rate": "1e-3", "warmup_steps": 0, "lr_schedule": "constant",
              "seed": 1} | changes
    words = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None:
            words += [option, str(value)]
    return words


def make_model(directory: Path, **changes) -> Path:
    """Creates a model of random weights in bf16: the small one with other sizes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    values = json.loads((SAMPLE / "model" / "config.json").read_text()) | changes | {"head_dim": None}
    torch.manual_seed(3)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**values))
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model.tie_weights()
    model.save_pretrained(directory)
    return directory


def shared_memory() -> set[str]:
    """Returns the names that runs have in /dev/shm."""
    return {file.name for file in Path("/dev/shm").iterdir() if file.name.startswith(".roundpipe-")}


class LaunchedTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-system-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.output = self.directory / "output"

    def command(self, train: list[str], launch: list[str]) -> list[str]:
        return [str(PROGRAMS / "rp-launch"), *on_device(launch), "train", *train]

    def run_train(self, train: list[str], launch: tuple = ("--workers", "2"), expect: int = 0, **options):
        """Runs train to its end, and checks the exit code and that no process is left. Returns the finished
        process."""
        return self.run_to_end(self.command(train, list(launch)), expect, **options)

    def run_together(self, runs: list[list[str]], launch: list[str]) -> None:
        """The same for several runs, which are pipelines of one session: the lists of arguments of train."""
        words = [word for run in runs for word in ("--", *run)]
        self.run_to_end([str(PROGRAMS / "rp-launch"), *on_device(launch), os.environ["RP_SEVERAL_RUNS"], *words[1:]])

    def run_to_end(self, command: list[str], expect: int = 0, **options):
        process = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, **options)
        self.assertEqual(process.returncode, expect, process.stdout[-2000:] + process.stderr[-2000:])
        self.assert_nothing_left()
        return process

    def wait_for_steps(self, process: subprocess.Popen, more: int = 1) -> None:
        """Waits until a run has made more steps, or has ended."""
        file = self.output / "metrics.jsonl"
        have = file.read_text().count("\n") if file.exists() else 0
        while process.poll() is None and (file.read_text().count("\n") if file.exists() else 0) < have + more:
            time.sleep(0.002)

    def processes_left(self) -> list[str]:
        """Returns the processes that are left of this test's runs."""
        mine = str(self.directory).encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes()
            except OSError:
                continue
            if mine in words and (b"train" in words or b"several_runs" in words):
                found.append(f"process {entry.parent.name}: {words!r}")
        return found

    def assert_nothing_left(self, within_s: float = 0):
        """Checks that nothing is left of this test's runs. After a SIGKILL of rp-launch, its watchdog needs some
        milliseconds to end the others, and ends after them: `within_s` is how long all that may take. Shared memory is left
        if its name stays: runs of other tests have names there while they start."""
        end = time.monotonic() + within_s
        while (left := self.processes_left()) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(left, [])
        names, end = shared_memory(), time.monotonic() + NAME_S
        while names and time.monotonic() < end:
            time.sleep(0.01)
            names &= shared_memory()
        self.assertEqual(names, set())

    def refused(self, expect: int, *parts: str, launch: tuple = ("--workers", "8"), untouched: bool = True, **changes) -> str:
        """Checks that a run fails with this code and one message on stderr that contains these parts."""
        process = self.run_train(settings(self.output, **changes), launch, expect)
        for part in parts:
            self.assertEqual(process.stderr.count(part), 1, f"{part!r} once in:\n{process.stderr}")
        self.assertEqual(process.stderr.count("error"), 1, process.stderr)
        if untouched:
            self.assertFalse(self.output.exists(), "an output directory is left")
        return process.stderr


def children(pid: int) -> list[int]:
    """Returns the processes that a process has started; none if it has ended."""
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return []


def processes_of(launcher: subprocess.Popen) -> list[int]:
    """Returns the coordinator and the workers of an rp-launch."""
    pids = []
    for pid in children(launcher.pid):
        try:
            if Path(f"/proc/{pid}/comm").read_text() != "rp-watchdog\n":
                pids.append(pid)
        except OSError:
            pass  # it has ended
    return pids


def children_with_role(process: subprocess.Popen, role: str) -> list[int]:
    """Returns the pids of the children with this role, of those that are starting, too."""
    found = []
    for pid in children(process.pid):
        try:
            if f"RP_ROLE={role}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            pass  # it has ended
    return found


def child_with_role(process: subprocess.Popen, role: str) -> int:
    """Returns the pid of a child with this role; waits until there is one."""
    for _ in range(1000):
        if found := children_with_role(process, role):
            return found[0]
        time.sleep(0.01)
    raise AssertionError(f"no {role}")


def worker_of(process: subprocess.Popen) -> int:
    """Returns the pid of one of the workers of an rp-launch."""
    return child_with_role(process, "worker")


def coordinator_of(process: subprocess.Popen) -> int:
    return child_with_role(process, "coordinator")


def serving_workers(process: subprocess.Popen) -> dict[int, int]:
    """Returns the pids of the workers of an rp-launch that serve, by number."""
    found = {}
    for pid in children(process.pid):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            threads = {(task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()}
        except OSError:
            continue  # it has ended
        if ":worker" in name and "rp-compute" in threads:
            found[int(name.split(":worker")[1])] = pid
    return found


def hang(pid: int) -> None:
    """Makes the compute thread of a worker spin for ever. The run must have been started with the environment of
    may_hang()."""
    SYS_TGKILL = 234
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "rp-compute":
            ctypes.CDLL(None).syscall(SYS_TGKILL, pid, int(task.name), signal.SIGUSR2)


def wait_until_applying(pid: int) -> None:
    """Waits until the thread that applies the steps of a coordinator runs, at most 0.5 s: the shortest runs last 2 s."""
    end = time.monotonic() + 0.5
    try:
        tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text() == "rp-updates\n"]
        with open(tasks[0] / "stat") as stat:
            while time.monotonic() < end and stat.read().rsplit(")", 1)[1].split()[0] != "R":
                stat.seek(0)
    except OSError:
        pass  # it has ended


def may_hang() -> dict[str, str]:
    return os.environ | {"LD_PRELOAD": os.environ["RP_SPIN_LIBRARY"]}


def metrics(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def bits(output: Path, file: str = "model.safetensors") -> tuple:
    """Returns what must be equal between two runs: every loss to its last bit, and a hash of the file with the trained
    model or adapter."""
    losses = [line.split('"loss": ')[1].split(",")[0] for line in (output / "metrics.jsonl").read_text().splitlines()]
    return losses, hashlib.sha256((output / "final" / file).read_bytes()).hexdigest()


def state_bits(output: Path) -> list[str]:
    """Returns the checksums of the newest checkpoint's tensors: masters, moments and buffers."""
    newest = max(output.glob("checkpoint-*"), key=lambda path: int(path.name.removeprefix("checkpoint-")))
    return [line for line in (newest / "XXH128SUMS").read_text().splitlines() if "safetensors" in line]
