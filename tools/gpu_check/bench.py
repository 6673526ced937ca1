"""Finds programs, data and the GPU, tracks the remaining time, and runs programs."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from checks import NotRun

ROOT = Path(__file__).resolve().parents[2]
NO_DEVICE = 69


class NoDevice(Exception):
    """There is no GPU. The message has a remedy."""


@dataclass(frozen=True)
class Card:
    name: str
    driver: str
    memory_mib: int


def warm_libraries(folders: str, seconds: float) -> str:
    """Reads the libraries of LibTorch and CUDA once, so that a slow first read from disk does not
    count towards the first process of some part. Returns what it read, as text."""
    begin, total = time.monotonic(), 0
    files = [file for folder in folders.split(":") if folder for name in NEEDED_EARLY for file in sorted(Path(folder).glob(name))]
    for file in dict.fromkeys(file.resolve() for file in files if file.is_file()):
        with open(file, "rb", buffering=0) as data:
            while time.monotonic() - begin < seconds and (piece := data.read(16 << 20)):
                total += len(piece)
    return f"libraries: {total / 1e9:.1f} GB read in {time.monotonic() - begin:.1f} s"


# The libraries that a worker loads before its first step.
NEEDED_EARLY = ("libtorch_c*.so", "libc10*.so", "libcublas*.so*", "libcudart.so*", "libcudnn.so*", "libcudnn_graph.so*")


def find_card() -> Card:
    """Returns the first GPU of this machine. Throws NoDevice."""
    remedy = "; install the driver (in a container: start it with GPUs) and look at `nvidia-smi`, or run this on a machine with a GPU"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        raise NoDevice("no CUDA device: CUDA_VISIBLE_DEVICES shows none; unset it")
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except OSError:
        card = card_of_nvml()  # containers may have the driver's libraries but not its programs
        if card is None:
            raise NoDevice("no CUDA device: the NVIDIA driver's nvidia-smi is not there" + remedy) from None
        return card
    except subprocess.TimeoutExpired:
        raise NoDevice("no CUDA device: nvidia-smi does not answer; look at the kernel's log") from None
    lines = process.stdout.strip().splitlines()
    if process.returncode != 0 or not lines:
        raise NoDevice(f"no CUDA device: nvidia-smi says '{(process.stdout + process.stderr).strip()[:200]}'{remedy}")
    name, driver, memory = (cell.strip() for cell in lines[0].split(",")[:3])
    return Card(name, driver, int(memory) if memory.isdigit() else 0)


def free_gpu_mib() -> int:
    """Returns the free memory of the first GPU, counting all processes. Throws NotRun if it cannot be found out."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split()[0])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        found = nvml_figures()
    if found is None:
        raise NotRun("neither nvidia-smi nor the driver's NVML says how much of the GPU's memory is free")
    return found[1]


def card_of_nvml(library: str = "libnvidia-ml.so.1") -> Card | None:
    """Returns the first GPU as reported by NVML, which nvidia-smi also uses. Returns None if the
    library does not exist or fails."""
    found = nvml_figures(library)
    return found[0] if found else None


def nvml_figures(library: str = "libnvidia-ml.so.1") -> tuple[Card, int] | None:
    """Returns the first GPU, and the free MiB of its memory."""
    device, memory, texts = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)(), [ctypes.create_string_buffer(96) for _ in range(2)]
    try:
        nvml = ctypes.CDLL(library)
        # Called in this order; each returns 0 on success. Memory: total, free, used.
        results = (nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
                   nvml.nvmlDeviceGetName(device, texts[0], 96), nvml.nvmlSystemGetDriverVersion(texts[1], 80),
                   nvml.nvmlDeviceGetMemoryInfo(device, memory))
    except (OSError, AttributeError):
        return None
    name, driver = (text.value.decode(errors="replace") for text in texts)
    return (Card(name, driver, memory[0] >> 20), memory[1] >> 20) if not any(results) else None


MOST_OF_A_LOG = 30000  # limit of one program's output in the log, in characters


def shortened(text: str) -> str:
    """Returns the beginning and the end of the text."""
    if len(text) <= MOST_OF_A_LOG:
        return text
    return f"{text[:MOST_OF_A_LOG // 3]}\n[... {len(text) - MOST_OF_A_LOG} characters ...]\n{text[-2 * MOST_OF_A_LOG // 3:]}"


@dataclass(frozen=True)
class Result:
    code: int | None  # None: it was killed because its time was over
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        """Returns the end of the output, for a message."""
        return " ".join((self.err.strip() or self.out.strip()).splitlines()[-3:])[-300:]


def rest_of(process: subprocess.Popen) -> tuple[str, str]:
    """Returns the output of a process that was killed. Its child processes may still have the pipes open."""
    try:
        return process.communicate(timeout=10)
    except subprocess.TimeoutExpired as error:
        return tuple((text or b"").decode(errors="replace") for text in (error.stdout, error.stderr))


class Bench:
    """The run of one part. `scratch` is a directory for files that it creates; the output of
    programs is appended to `log`. Checks state how long they may take if the part has its usual
    time; `scale` is the factor by which the part's time is longer."""

    def __init__(self, card: Card, seconds: float, scratch: Path, log: Path | None = None, scale: float = 1.0):
        self.card = card
        self.scale = scale
        self.scratch = scratch
        self.end = time.monotonic() + seconds
        self.log = log
        self.processes: set[subprocess.Popen] = set()  # running; each leads a process group
        self.lock = threading.RLock()  # reentrant, because a signal handler acquires it too

    def start(self, command: list, **options) -> subprocess.Popen:
        """Starts a process in its own group, so that end_group() and kill_all() end all of its
        descendants: those of rp-launch, but also a sanitizer and the program that it runs."""
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, start_new_session=True, **options)
        with self.lock:
            self.processes.add(process)
        return process

    def end_group(self, process: subprocess.Popen) -> None:
        """Kills the group of a process if the process is still running."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            pass  # it hangs in the driver and cannot be ended; others may still be measured
        with self.lock:
            self.processes.discard(process)

    def kill_all(self) -> None:
        """Kills all processes. None can be started with run() after this."""
        self.end = 0.0
        for process in list(self.processes):
            self.end_group(process)

    def note(self, command: list, result: "Result") -> None:
        """Appends to the log, because only the end of the output comes back from many machines' consoles."""
        if self.log is None:
            return
        ended = "its time was over" if result.code is None else f"exit code {result.code}"
        text = f"$ {' '.join(str(word) for word in command)}\n{shortened(result.out)}{shortened(result.err)}[{ended}, {result.seconds:.1f} s]\n\n"
        with self.lock, open(self.log, "a", encoding="utf-8") as log:
            log.write(text)

    def note_table(self, columns: tuple[str, ...], lines) -> None:
        """Appends a table to the log, for figures that do not fit into a row of the page."""
        if self.log is None:
            return
        rows = [columns] + [tuple(f"{line[name]:.4g}" if isinstance(line[name], float) else str(line[name]) for name in columns) for line in lines]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        text = "".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() + "\n" for row in rows)
        with self.lock, open(self.log, "a", encoding="utf-8") as log:
            log.write(text + "\n")

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def seconds(self, most: float) -> float:
        """Returns the time for a program: `most` times the scale, but at most the time left. Throws
        NotRun if no time is left."""
        if self.left < 5:
            raise NotRun("the part's time was over")
        return min(most * self.scale, self.left)

    def all_but(self, reserve: float, least: float = 20.0) -> float:
        """Returns a time for seconds() that leaves `reserve` seconds of the part, but at least `least`."""
        return max((self.left - reserve) / self.scale, least)

    def program(self, name: str) -> Path:
        """Returns the path of a program of this project, in a bundle or in a build tree."""
        for folder in (ROOT, ROOT / "build" / "gpu-bundle", ROOT / "build" / "gpu", ROOT / "build" / "release"):
            for place in ("bin", "tests"):
                if os.access(folder / place / name, os.X_OK) and (folder / place / name).is_file():
                    return folder / place / name
        raise NotRun(f"{name} is not built (scripts/gpu-bundle.sh)")

    def tiny_model(self) -> Path:
        """Returns the folder that tests/system/make_tiny_model.py has written."""
        for folder in (ROOT / "data" / "tiny", ROOT / "build" / "gpu-bundle" / "data" / "tiny", ROOT / "build" / "gpu" / "tests" / "system" / "tiny",
                       ROOT / "build" / "release" / "tests" / "system" / "tiny"):
            if (folder / "data.tokens").exists():
                return folder
        raise NotRun("the tiny model is not there (tests/system/make_tiny_model.py)")

    def family_cases(self) -> Path:
        """Returns the folder that tests/parity/make_gpu_cases.py has written."""
        for folder in (ROOT / "data" / "families", ROOT / "build" / "gpu-bundle" / "data" / "families", ROOT / "build" / "families"):
            if folder.is_dir():
                return folder
        raise NotRun("the models are not there; make them: .venv/bin/python tests/parity/make_gpu_cases.py build/families")

    def run(self, command: list, seconds: float, **options) -> Result:
        """Runs a program to its end, but at most for `seconds`; then it is killed with all
        processes that it started."""
        begin = time.monotonic()
        limit = self.seconds(seconds)
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", **options)
        try:
            out, err = process.communicate(timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.end_group(process)
        if code is None:
            out, err = rest_of(process)
        result = Result(code, out, err, time.monotonic() - begin)
        self.note(command, result)
        return result

    def python(self) -> str:
        return sys.executable
