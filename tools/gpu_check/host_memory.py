"""Makes a virtual machine that starts with little memory grow to its full size. Programs that check
the free memory before they allocate, as the host store does, would find too little. So the memory
is requested once, before anything is measured."""

import mmap
import os
import re
import signal
import sys
import time
from pathlib import Path

PIECE = 256 << 20
KEPT_FREE = 3 << 29  # 1.5 GiB, for all other processes
ENOUGH = 0.95  # share of the requested size: the kernel reports less than the machine has
PAGE = 4096


def parse_size(text: str) -> int:
    """Parses a size such as `120G`, in bytes."""
    found = re.fullmatch(r"(\d+)([GT])", text)
    if not found:
        raise ValueError(f"RP_GPU_HOST_MEMORY is '{text}', but it is a size such as 120G")
    return int(found.group(1)) << {"G": 30, "T": 40}[found.group(2)]


def figure(name: str, root: Path = Path("/")) -> int:
    """Returns a field of /proc/meminfo, in bytes."""
    fields = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024


def take_memory(root: Path) -> None:
    """Allocates memory until the process is killed. Runs in its own process, which the kernel kills
    first if memory runs out."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass
    held, parent = [], os.getppid()
    while os.getppid() == parent:
        if figure("MemAvailable", root) < KEPT_FREE:
            time.sleep(0.05)
            continue
        piece = mmap.mmap(-1, PIECE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            piece.madvise(mmap.MADV_HUGEPAGE)
        piece[::PAGE] = b"\1" * (PIECE // PAGE)
        held.append(piece)


def ask_for(size: int, seconds: float, root: Path = Path("/"), patience: float = 5.0, processes: int = 4) -> str:
    """Allocates memory and frees it again once the machine has reached the size, has not grown for
    `patience` seconds although little was free, or `seconds` have passed. Returns what it found, as
    text."""
    begin = last = time.monotonic()
    first = total = figure("MemTotal", root)
    if total >= ENOUGH * size:
        return f"host memory: {total / 2**30:.1f} GiB"
    takers = []
    try:
        for _ in range(processes):
            pid = os.fork()
            if pid == 0:
                try:
                    take_memory(root)
                finally:
                    os._exit(0)
            takers.append(pid)
        while total < ENOUGH * size and time.monotonic() - begin < seconds and time.monotonic() - last < patience:
            time.sleep(0.05)
            now = figure("MemTotal", root)
            if now > total or figure("MemAvailable", root) > 2 * KEPT_FREE:  # it has grown, or free memory is left
                last = time.monotonic()
            total = now
    finally:
        for pid in takers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return f"host memory: {first / 2**30:.1f} GiB, after it was asked for more {total / 2**30:.1f} GiB, {time.monotonic() - begin:.0f} s"


if __name__ == "__main__":
    print(ask_for(parse_size(sys.argv[1]), 60))
