"""Runs a program under rp-launch, or alone, with one failing system call. Returns its output, how it ended, and what
it left behind.

The library for LD_PRELOAD is failing_calls.cc. docs/design/chaos.md."""

import dataclasses
import os
import signal
import subprocess
import time
from pathlib import Path

FAULTS = ("ENOSPC", "EIO", "EINTR", "EMFILE", "EAGAIN", "short")
WRITES = ("write", "pwrite", "writev")  # the calls that may be short
OTHERS = ("libhwloc", "libc10", "libgomp")  # libraries whose own calls are not tested
TORCH = "libtorch_cpu"
FILE_SYSTEM = ("libstdc++", TORCH)  # libraries that contain std::filesystem: LibTorch has a copy of its own
END_S = 1.0  # time after the end of a run, after which none of its processes may be left
NAME_S = 20  # Another run has a name in /dev/shm only while it starts, which takes less time than this.


@dataclasses.dataclass(frozen=True)
class Fault:
    """In one process, the `index`-th call (from 1) of one kind fails, and so do the `times` - 1 calls after it."""
    process: str
    call: str
    index: int
    fault: str
    times: int = 1

    def variables(self) -> dict[str, str]:
        return {"CHAOS_PROCESS": self.process, "CHAOS_CALL": self.call, "CHAOS_INDEX": str(self.index), "CHAOS_FAULT": self.fault,
                "CHAOS_TIMES": str(self.times)}

    def __str__(self):
        return f"{self.process} {self.call} {self.index} {self.fault}"


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that the library counted."""
    process: str
    call: str
    index: int
    fault: str  # "-" if it did not fail
    caller: str
    path: str


    def is_of_torch_kernel(self) -> bool:
        """True for calls with which LibTorch's kernels map memory for generated code. Their handling of a failure is
        not tested."""
        return self.call == "mmap" and self.caller.startswith(TORCH)


@dataclasses.dataclass
class Outcome:
    code: int | None  # None: the run had not ended by its deadline and was killed
    out: str
    err: str
    seconds: float
    calls: list[Call]
    left: list[str]  # processes, shared memory, temporary files

    def failed_in_removal(self) -> bool:
        """True if the failed call was part of removing a file or directory. std::filesystem opens directories in order
        to remove them."""
        call = self.failed_call()
        return call is not None and (call.call == "unlink" or call.call == "open" and call.caller.startswith(FILE_SYSTEM))

    def failed_call(self) -> Call | None:
        return next((call for call in self.calls if call.fault != "-"), None)


def calls_of(log: Path) -> list[Call]:
    calls = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        words = line.split("\t")
        if len(words) == 7:
            calls.append(Call(words[1], words[2], int(words[3]), words[4], words[5], words[6]))
    return calls


def processes_of(mark: str) -> list[int]:
    """Returns the pids of processes whose environment contains the mark, except zombies, which wait for their
    parent."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes() and "State:\tZ" not in (entry / "status").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(".roundpipe-")}


def what_is_left(mark: str, temporary: Path, present_before: set[str]) -> list[str]:
    """Returns the processes that are left after END_S, and the names in /dev/shm that are left after NAME_S."""
    begin = time.monotonic()
    while (processes := processes_of(mark)) and time.monotonic() < begin + END_S:
        time.sleep(0.02)
    memory = shared_memory() - present_before
    while memory and time.monotonic() < begin + NAME_S:
        time.sleep(0.02)
        memory &= shared_memory()
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    return ([f"process {pid}" for pid in processes] + [f"shared memory {name}" for name in sorted(memory)] +
            [f"temporary file {path.name}" for path in temporary.iterdir()])


def run(command: list[str], directory: Path, library: Path | None, fault: Fault | None, deadline_s: float) -> Outcome:
    """Runs the command to its end. `directory`: used by this run only, for its log and its TMPDIR. Without `library`
    no call is counted."""
    log, temporary = directory / "calls.log", directory / "tmp"
    log.unlink(missing_ok=True)
    temporary.mkdir(exist_ok=True)
    mark = f"CHAOS_RUN={directory}.{time.monotonic_ns()}"
    environment = dict(os.environ, TMPDIR=str(temporary)) | dict([mark.split("=")]) | (fault.variables() if fault else {})
    if library:
        environment |= {"LD_PRELOAD": str(library), "CHAOS_LOG": str(log)}
    present_before = shared_memory()
    start = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               errors="replace", start_new_session=True)
    try:
        out, err = process.communicate(timeout=deadline_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        code = None
        for pid in processes_of(mark):
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate()
    return Outcome(code, out, err, time.monotonic() - start, calls_of(log), what_is_left(mark, temporary, present_before))


def can_fail_by(call: Call, fault: str) -> bool:
    if call.call == "pthread_create":
        return fault == "EAGAIN"  # its only documented error
    if call.path == "anon_inode:[eventfd]":
        return fault == "EINTR"  # the only possible error as long as the counter is not full
    return fault != "short" or call.call in WRITES


def faults_of(calls: list[Call], kinds: tuple = FAULTS) -> list[Fault]:
    """Returns every fault of every call of an undisturbed run, except calls of libraries that are not tested. hwloc
    opens hundreds of files in /sys to find the cores; only its first call is included."""
    first_of_hwloc = next((call for call in calls if call.caller.startswith("libhwloc")), None)
    ours = [call for call in calls if call == first_of_hwloc or
            not (call.caller.startswith(OTHERS) or call.is_of_torch_kernel())]
    return [Fault(call.process, call.call, call.index, kind) for call in ours for kind in kinds if can_fail_by(call, kind)]
