#!/usr/bin/env python3
"""Another user of the machine can open, trace, read, signal or list nothing of a run, and a run listens nowhere."""

import json
import os
import shutil
import subprocess
import time
import unittest
from pathlib import Path

from launched import PROGRAMS, LaunchedTest, children, serving_workers, settings

OTHER = 65534
# As another user: prints what succeeds. Arguments: the pids of the run.
ATTACK = r'''
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
PIDFD_OPEN, PIDFD_GETFD, PROCESS_VM_READV = 434, 438, 310

def attempt(what, action):
    try:
        result = action()
    except OSError:
        return
    if result is not None and result != -1:
        print(what, result)

def read_memory(pid):
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    buffer = ctypes.create_string_buffer(8)
    mine, theirs = Vector(ctypes.addressof(buffer), 8), Vector(0x400000, 8)
    result = libc.syscall(PROCESS_VM_READV, pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
    return result if ctypes.get_errno() != 14 else "allowed"  # EFAULT: only the address is wrong

for pid in map(int, sys.argv[1:]):
    attempt(f"/proc/{pid}/mem", lambda: os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    for file in ("maps", "environ", "fd", "auxv", "map_files", "io", "stack", "syscall", "personality"):
        path = f"/proc/{pid}/{file}"
        attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
    for number in range(20):
        attempt(f"/proc/{pid}/fd/{number}", lambda: os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY))
    attempt(f"cwd of {pid}", lambda: os.readlink(f"/proc/{pid}/cwd"))
    attempt(f"attach to {pid}", lambda: libc.ptrace(PTRACE_ATTACH, pid, 0, 0))
    attempt(f"seize {pid}", lambda: libc.ptrace(PTRACE_SEIZE, pid, 0, 0))
    attempt(f"read memory of {pid}", lambda: read_memory(pid))
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT, signal.SIGRTMIN, 0):
        attempt(f"signal {number} to {pid}", lambda: os.kill(pid, number) or "sent")
    pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
    for number in range(20):
        attempt(f"descriptor {number} of {pid}", lambda: libc.syscall(PIDFD_GETFD, pidfd, number, 0))
    attempt(f"limits of {pid}", lambda: libc.prlimit(pid, 7, None, ctypes.create_string_buffer(16)))
for name in os.listdir("/dev/shm"):
    attempt(f"/dev/shm/{name}", lambda: os.open(f"/dev/shm/{name}", os.O_RDONLY))
print("done")
'''


def sockets_of(pid: int) -> set[str]:
    """Returns the inodes of the sockets of a process."""
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except OSError:
            pass  # it is closed again
    return {link[len("socket:["):-1] for link in links if link.startswith("socket:[")}


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
class SecurityTest(LaunchedTest):
    def setUp(self):
        super().setUp()
        os.chmod(self.directory, 0o755)
        self.log = self.directory / "log"
        with self.log.open("w") as file:
            command = self.command(settings(self.output, max_steps=100000), ["--workers", "2", "--store", self.store])
            self.process = subprocess.Popen(command, stdout=file, stderr=file)
        self.addCleanup(self.end)
        end = time.monotonic() + 60
        while len(serving_workers(self.process)) < 2:
            self.assertLess(time.monotonic(), end, self.log.read_text())
            time.sleep(0.05)
        self.pids = [self.process.pid, *children(self.process.pid)]
        self.assertEqual(len(self.pids), 5, "rp-launch, its watchdog, the coordinator and two workers")

    store = "memfd"

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=60)

    def as_other_user(self, command: list[str]) -> subprocess.CompletedProcess:
        # In a session of its own: CONT may be sent within a session by anybody.
        return subprocess.run(command, start_new_session=True, user=OTHER, group=OTHER, extra_groups=[], capture_output=True, text=True, timeout=60, cwd="/",
                              env={"PATH": os.environ["PATH"]})

    def test_nothing_can_be_opened_traced_or_signalled(self):
        done = self.as_other_user(["/usr/bin/python3", "-c", ATTACK, *map(str, self.pids)])
        self.assertEqual(done.stdout, "done\n", done.stderr)
        self.assertIsNone(self.process.poll(), "the run goes on")
        # The test would see it: root may do all of this.
        done = subprocess.run(["/usr/bin/python3", "-c", ATTACK.replace("signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, ", ""),
                               str(self.pids[0])], capture_output=True, text=True, timeout=60)
        for what in ("/mem", "/environ", "/fd", "attach", "read memory", "signal 0", "descriptor 0", "limits"):
            self.assertIn(what, done.stdout)

    def test_nothing_listens(self):
        sockets = set.union(*map(sockets_of, self.pids))
        for table in ("tcp", "tcp6", "udp", "udp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                self.assertFalse(fields[9] in sockets, f"a process of the run has a socket of the network: {table}: {line}")
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[6] in sockets:
                self.assertEqual(len(fields), 7, f"a socket with a name, to which others could connect: {line}")

    def test_ps_and_ctl_see_only_runs_of_their_user(self):
        rp_launch = self.directory / "rp-launch"
        shutil.copy(PROGRAMS / "rp-launch", rp_launch)
        rp_launch.chmod(0o755)
        done = self.as_other_user([str(rp_launch), "ps", "--json"])
        self.assertEqual((done.returncode, json.loads(done.stdout)["runs"]), (0, []), done.stdout + done.stderr)
        done = self.as_other_user([str(rp_launch), "ctl", "add-worker", "--run", str(self.process.pid)])
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("you have no such run", done.stderr)
        done = self.as_other_user([str(rp_launch), "top", "--json", "--count", "1"])
        self.assertNotIn(str(self.process.pid), done.stdout)


class SharedMemorySecurityTest(SecurityTest):
    """With named segments, where these have names at all."""
    store = "shm"


if __name__ == "__main__":
    unittest.main()
