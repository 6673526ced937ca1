"""Where programs and data are, what GPU there is, how long there is left, and how programs are run."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from checks import NotRun

ROOT = Path(__file__).resolve().parents[2]
NO_DEVICE = 69


class NoDevice(Exception):
    """There is no GPU; says what to do."""


@dataclass(frozen=True)
class Card:
    name: str
    driver: str
    memory_mib: int


def find_card() -> Card:
    """The first GPU of this machine. Throws NoDevice."""
    remedy = "; install the driver (in a container: start it with GPUs) and look at `nvidia-smi`, or run this on a machine with a GPU"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        raise NoDevice("no CUDA device: CUDA_VISIBLE_DEVICES shows none; unset it")
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise NoDevice("no CUDA device: the NVIDIA driver's nvidia-smi is not there" + remedy) from None
    except subprocess.TimeoutExpired:
        raise NoDevice("no CUDA device: nvidia-smi does not answer; look at the kernel's log") from None
    lines = process.stdout.strip().splitlines()
    if process.returncode != 0 or not lines:
        raise NoDevice(f"no CUDA device: nvidia-smi says '{(process.stdout + process.stderr).strip()[:200]}'{remedy}")
    name, driver, memory = (cell.strip() for cell in lines[0].split(",")[:3])
    return Card(name, driver, int(memory) if memory.isdigit() else 0)


@dataclass(frozen=True)
class Result:
    code: int | None  # None: it was ended, because its time was over
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        """The end of what it said, for a message."""
        return " ".join((self.err.strip() or self.out.strip()).splitlines()[-3:])[-300:]


class Bench:
    """One part's run. `scratch` is a directory for what it makes."""

    def __init__(self, card: Card, seconds: float, scratch: Path):
        self.card = card
        self.scratch = scratch
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def seconds(self, most: float) -> float:
        """At most so many, and what is left. Throws NotRun if that is nothing."""
        if self.left < 5:
            raise NotRun("the part's time was over")
        return min(most, self.left)

    def program(self, name: str) -> Path:
        """A program of ours, in a bundle or in a tree that was built."""
        for folder in (ROOT, ROOT / "build" / "gpu-bundle", ROOT / "build" / "gpu", ROOT / "build" / "release"):
            for place in ("bin", "tests"):
                if os.access(folder / place / name, os.X_OK) and (folder / place / name).is_file():
                    return folder / place / name
        raise NotRun(f"{name} is not built (scripts/gpu-bundle.sh)")

    def tiny_model(self) -> Path:
        """What tests/system/make_tiny_model.py makes."""
        for folder in (ROOT / "data" / "tiny", ROOT / "build" / "gpu-bundle" / "data" / "tiny", ROOT / "build" / "gpu" / "tests" / "system" / "tiny",
                       ROOT / "build" / "release" / "tests" / "system" / "tiny"):
            if (folder / "data.tokens").exists():
                return folder
        raise NotRun("the tiny model is not there (tests/system/make_tiny_model.py)")

    def run(self, command: list, seconds: float, **options) -> Result:
        """To its end, or for so long; it is killed then, and with rp-launch all that it started."""
        begin = time.monotonic()
        limit = self.seconds(seconds)
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, start_new_session=True, **options)
        try:
            out, err = process.communicate(timeout=limit)
            code = process.returncode
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # its own group: not rp-launch alone, but also a sanitizer and what it runs
            out, err = process.communicate()
            code = None
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        return Result(code, out, err, time.monotonic() - begin)

    def python(self) -> str:
        return sys.executable
