#!/usr/bin/env python3
"""Several hosts on one machine: what a host has of its own, a job of Open MPI over them, a cut connection, and that
nothing of them is left."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from hosts import Hosts, NoHosts

DEADLINE_S = 15
# Makes hosts, starts a process on one of them that leaves its parent, and waits.
TEST_TO_KILL = """
import subprocess, sys
from hosts import Hosts
with Hosts(2, sys.argv[1]) as hosts:
    subprocess.run(hosts.command("host1", ["setsid", "--fork", "sleep", "1000"]), check=True)
    print(*hosts.processes("host1"), flush=True)
    sys.stdin.read()
"""
# Prints the seconds that all data of one connection needed.
RECEIVE = """
import socket, time
with socket.create_server(("", 7000)) as server:
    print("ready", flush=True)
    connection = server.accept()[0]
    begin = time.monotonic()
    while connection.recv(1 << 20):
        pass
    print(time.monotonic() - begin)
"""
SEND = "import socket; socket.create_connection(('host1', 7000)).sendall(bytes(25_000_000))"


def machine() -> tuple:
    """Returns what must not change: mounts, network interfaces, and shared memory that is not of other programs."""
    links = sorted(path.name for path in Path("/sys/class/net").iterdir())
    return Path("/proc/mounts").read_text(), links, sorted(path.name for path in Path("/dev/shm").glob("rp-hosts-*"))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class HostsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-system-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        before = machine()
        self.addCleanup(lambda: self.assertEqual(machine(), before))

    def hosts(self, num: int = 2, name: str = "hosts", **options) -> Hosts:
        """Returns hosts that are removed at the end of the test."""
        (self.directory / name).mkdir()
        try:
            return self.enterContext(Hosts(num, self.directory / name, **options))
        except NoHosts as reason:
            self.skipTest(str(reason))

    def mpirun(self, on: Hosts, args: list[str], **options) -> list[str]:
        try:
            return on.mpirun(args, **options)
        except NoHosts as reason:
            self.skipTest(str(reason))

    def output(self, command: list[str]) -> str:
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout.strip()

    def wait_until(self, is_so, what: str, within_s: float = DEADLINE_S) -> None:
        end = time.monotonic() + within_s
        while not is_so():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.02)

    def test_a_host_has_its_own_name_memory_and_directory_in_every_process(self):
        hosts = self.hosts(3, shm="8m")
        for name in hosts.names:
            self.output(hosts.command(name, ["touch", f"/dev/shm/rp-hosts-{name}"]))
        look = ["sh", "-c", "hostname; ls /dev/shm; df --output=size /dev/shm | tail -n 1; echo $TMPDIR; pwd"]
        for name in hosts.names:
            found = self.output(hosts.command(name, look))
            self.assertEqual(found.split(), [name, f"rp-hosts-{name}", "8192", str(hosts.temporary(name)), os.getcwd()])

    def test_mpirun_starts_one_process_on_each_host(self):
        hosts = self.hosts(3)
        say = ["sh", "-c", "echo $(hostname) $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE $(ls -d $TMPDIR)"]
        lines = self.output(self.mpirun(hosts, say)).splitlines()
        self.assertEqual(sorted(lines), [f"host{rank} {rank} of 3 {hosts.temporary(f'host{rank}')}" for rank in range(3)])
        # mpirun does not wait for the ends of its daemons.
        self.wait_until(lambda: not any(hosts.processes(name) for name in hosts.names), "a daemon of mpirun is left", within_s=5)
        lines = self.output(self.mpirun(hosts, ["hostname"], hosts=["host0", "host2"])).splitlines()
        self.assertEqual(sorted(lines), ["host0", "host2"])

    def test_a_cut_connection_ends_the_job_on_both_sides(self):
        hosts = self.hosts()
        for name in hosts.names:
            # A daemon whose last message was not received any more waits for 15 minutes with the kernel's setting.
            self.output(hosts.command(name, ["sh", "-c", "echo 3 >/proc/sys/net/ipv4/tcp_retries2"]))
        job = subprocess.Popen(self.mpirun(hosts, ["sh", "-c", "hostname; exec sleep 1000"]), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)

        self.assertEqual(sorted(job.stdout.readline() for _ in hosts.names), ["host0\n", "host1\n"])
        hosts.cut("host1")
        _, errors = job.communicate(timeout=DEADLINE_S)
        self.assertNotEqual(job.returncode, 0)
        self.assertIn("lost communication with a remote daemon", errors)
        self.wait_until(lambda: not any(hosts.processes(name) for name in hosts.names), "processes are left")
        process = subprocess.run(self.mpirun(hosts, ["hostname"]), capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 255, process.stderr)
        self.assertIn("no route to host1", process.stderr)
        hosts.restore("host1")
        self.assertEqual(sorted(self.output(self.mpirun(hosts, ["hostname"])).split()), ["host0", "host1"])

    def test_a_rate_limits_what_a_host_sends(self):
        hosts = self.hosts()
        hosts.shape("200mbit")
        receiver = subprocess.Popen(hosts.command("host1", [sys.executable, "-c", RECEIVE]), stdout=subprocess.PIPE, text=True)
        self.addCleanup(receiver.kill)
        self.assertEqual(receiver.stdout.readline(), "ready\n")
        self.output(hosts.command("host0", [sys.executable, "-c", SEND]))
        seconds = float(receiver.communicate(timeout=DEADLINE_S)[0])
        self.assertGreater(seconds, 0.8, "25 MB at 200 Mbit/s need 1 s")

    def test_hosts_of_two_tests_do_not_meet(self):
        first, second = self.hosts(name="first"), self.hosts(name="second")
        server = subprocess.Popen(first.command("host1", [sys.executable, "-c", RECEIVE]), stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.kill)
        self.assertEqual(server.stdout.readline(), "ready\n")
        refused = subprocess.run(second.command("host0", [sys.executable, "-c", SEND]), capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertIn("ConnectionRefusedError", refused.stderr)
        self.output(first.command("host0", [sys.executable, "-c", SEND]))
        server.communicate(timeout=DEADLINE_S)

    def test_nothing_is_left_of_a_test_that_is_killed(self):
        self.hosts(name="skips")  # skips this test if there can be no hosts
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                directory = self.directory / number.name
                directory.mkdir()
                test = subprocess.Popen([sys.executable, "-c", TEST_TO_KILL, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, cwd=Path(__file__).parent)
                with test, test.stdout as pids:
                    sleeper = int(pids.readline())
                    self.assertTrue(is_alive(sleeper))
                    test.send_signal(number)
                    test.wait(timeout=DEADLINE_S)
                self.wait_until(lambda: not is_alive(sleeper), f"process {sleeper} is left")
                words = str(directory).encode()
                self.wait_until(lambda: not any(words in path.read_bytes() for path in self.commands()), "the keeper is left")

    @staticmethod
    def commands():
        """Yields the files with the command lines of all processes."""
        for pid in Path("/proc").glob("[0-9]*"):
            if is_alive(int(pid.name)):
                yield pid / "cmdline"


if __name__ == "__main__":
    unittest.main()
