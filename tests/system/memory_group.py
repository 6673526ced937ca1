"""A memory control group (version 2 or 1) for one run, below the group of this process, if this process may create
one."""

import os
import time
from pathlib import Path


class NoMemoryGroup(Exception):
    """Raised if no group can be created; the message is the reason."""


class MemoryGroup:
    """A group with a limit in bytes. Call remove() when its processes are gone."""

    def __init__(self, limit: int):
        self.is_v2, parent = self._own_group()
        self.path = parent / f"rp-test-{os.getpid()}-{time.monotonic_ns()}"
        try:
            self.path.mkdir()
        except OSError as error:
            raise NoMemoryGroup(f"cannot make a memory control group in {parent}: {error.strerror}") from None
        try:
            self._write("memory.max" if self.is_v2 else "memory.limit_in_bytes", limit)
            if self.is_v2 and (self.path / "memory.swap.max").exists():
                self._write("memory.swap.max", 0)
        except OSError as error:
            self.remove()
            raise NoMemoryGroup(f"cannot set the limit of {self.path}: {error.strerror}") from None

    @staticmethod
    def _own_group() -> tuple[bool, Path]:
        mount = Path("/sys/fs/cgroup")
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(",") and (mount / "memory").is_dir():
                return False, mount / "memory" / path.lstrip("/")
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            group = mount / path.lstrip("/")
            if number == "0" and (group / "cgroup.subtree_control").exists():
                if "memory" in (group / "cgroup.subtree_control").read_text().split():
                    return True, group
        raise NoMemoryGroup("no memory controller for children of this process's control group")

    def _write(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value))

    def command(self, command: list[str]) -> list[str]:
        """Returns a command that runs `command` inside the group."""
        return ["bash", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(self.path), *command]

    def highest_bytes(self) -> int:
        return int((self.path / ("memory.peak" if self.is_v2 else "memory.max_usage_in_bytes")).read_text())

    def times_at_limit(self) -> int:
        """Returns the number of times that memory was reclaimed because the limit was reached."""
        if not self.is_v2:
            return int((self.path / "memory.failcnt").read_text())
        return int(dict(line.split() for line in (self.path / "memory.events").read_text().splitlines())["max"])

    def remove(self) -> None:
        for _ in range(50):  # its last process may not be reaped yet
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)
