"""Memory of a virtual machine that has little at first and is given more as it is used: what looks at free memory before it takes
some, as the host store does, would find too little. So it is asked for once, before anything is measured."""

import mmap
import os
import re
import signal
import sys
import time
from pathlib import Path

PIECE = 256 << 20
KEPT_FREE = 3 << 29  # 1.5 GiB, for everybody else
ENOUGH = 0.95  # of what was asked for: the kernel counts less than a machine has
PAGE = 4096


def parse_size(text: str) -> int:
    """`120G` and the like, in bytes."""
    found = re.fullmatch(r"(\d+)([GT])", text)
    if not found:
        raise ValueError(f"RP_GPU_HOST_MEMORY is '{text}', but it is a size such as 120G")
    return int(found.group(1)) << {"G": 30, "T": 40}[found.group(2)]


def figure(name: str, root: Path = Path("/")) -> int:
    """Of /proc/meminfo, in bytes."""
    fields = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024


def take_memory(root: Path) -> None:
    """In a process of its own, which is the first to go where there is none; until it is killed."""
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
    """Takes memory and gives it back until the machine has so much, has had no more for `patience` seconds though little was free, or
    time is over. Says what it found."""
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
            if now > total or figure("MemAvailable", root) > 2 * KEPT_FREE:  # more has come, or is to be taken first
                last = time.monotonic()
            total = now
    finally:
        for pid in takers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return f"host memory: {first / 2**30:.1f} GiB, after it was asked for more {total / 2**30:.1f} GiB, {time.monotonic() - begin:.0f} s"


if __name__ == "__main__":
    print(ask_for(parse_size(sys.argv[1]), 60))
