#!/usr/bin/env python3
"""rp-launch doctor --hosts: hosts in namespaces, whose network has a known rate."""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from hosts import Hosts, NoHosts

PROGRAMS = Path(os.environ["RP_PROGRAMS"])
DEADLINE_S = 90


class HostsDoctorTest(unittest.TestCase):
    def hosts(self, num: int) -> Hosts:
        """Returns hosts that are removed at the end of the test."""
        if not (PROGRAMS.parent / "lib" / "libroundpipe_mpi.so").exists():
            self.skipTest("this build has no libroundpipe_mpi.so")
        directory = self.enterContext(tempfile.TemporaryDirectory(prefix="rp-system-"))
        try:
            hosts = self.enterContext(Hosts(num, Path(directory)))
            hosts.mpirun([])
        except NoHosts as reason:
            self.skipTest(str(reason))
        return hosts

    def start(self, hosts: Hosts, *options: str) -> subprocess.Popen:
        command = [str(PROGRAMS / "rp-launch"), "doctor", *options]
        job = subprocess.Popen(hosts.command("host0", command), env=os.environ | hosts.mpi_environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)
        return job

    def doctor(self, hosts: Hosts, *options: str, expect: int = 0) -> tuple[str, str]:
        """Returns what rp-launch doctor prints, and its errors."""
        job = self.start(hosts, *options)
        out, errors = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, expect, out + errors)
        self.assert_nothing_left(hosts)
        return out, errors

    def assert_nothing_left(self, hosts: Hosts, within_s: float = 5):
        end = time.monotonic() + within_s
        while left := [name for host in hosts.names for name in hosts.process_names(host)]:
            self.assertLess(time.monotonic(), end, f"processes are left: {left}")
            time.sleep(0.02)
        self.assertEqual([str(path) for path in hosts.temporary("host0").glob("rp-launch-*")], [])

    def test_reports_the_rate_that_the_network_is_limited_to(self):
        hosts = self.hosts(3)
        hosts.shape("1gbit")
        (hosts.directory / "hostfile").write_text("host0\nhost1:2  # two workers\nhost2 slots=1\n")
        out, _ = self.doctor(hosts, "--hostfile", str(hosts.directory / "hostfile"), "--json")
        report = json.loads(out)
        self.assertEqual([check["name"] for check in report["checks"] if not check["ok"]], [], out)
        self.assertEqual([(link["first"], link["second"]) for link in report["links"]],
                         [("host0", "host1"), ("host1", "host2"), ("host2", "host0")])
        for link in report["links"]:
            for direction in ("gbs_to_first", "gbs_to_second"):
                self.assertAlmostEqual(link[direction] * 8, 1, delta=0.1)
            self.assertLess(link["latency_us"], 5000)
        for clock in report["clocks"]:  # the hosts have the clock of this machine
            self.assertLessEqual(abs(clock["seconds_ahead"]), clock["uncertainty_seconds"])
        self.assertRegex(report["network"], r"^(0\.9|1\.0)[0-9]+gbit,[0-9]+us$")

    def test_a_host_that_does_not_answer_is_named_and_the_others_are_measured(self):
        hosts = self.hosts(3)
        hosts.cut("host1")
        out, errors = self.doctor(hosts, "--hosts", "host0,host1,host2", expect=69)
        self.assertRegex(out, r"(?m)^answer +PROBLEM +2 of 3 hosts can start a run$")
        self.assertRegex(out, r"(?m)^bandwidth +ok +[0-9.]+ Gbit/s between host0 and host2,")
        self.assertRegex(out, r"(?m)^rp-plan plan --nodes 2 --network [0-9.]+gbit,[0-9]+us$")
        self.assertIn("rp-launch: host host1 cannot be reached", errors)

    def test_two_hosts_that_reach_all_but_each_other_are_named(self):
        hosts = self.hosts(3)
        hosts.separate(["host1", "host2"])
        out, _ = self.doctor(hosts, "--hosts", "host0,host1,host2", expect=72)
        self.assertRegex(out, r"(?m)^messages +PROBLEM +arrive between 2 of 3 pairs of neighbours$")
        self.assertIn("  host1 and host2: messages between them do not arrive in time", out)

    def test_a_host_without_the_program_is_named_and_measured_all_the_same(self):
        hosts = self.hosts(2)
        out, errors = self.doctor(hosts, "--hosts", "host0,host1", "no-such-program", expect=127)
        self.assertRegex(out, r"(?m)^answer +PROBLEM +0 of 2 hosts can start a run$")
        self.assertRegex(out, r"(?m)^bandwidth +ok ")
        for host in hosts.names:
            self.assertIn(f"rp-launch: host {host} cannot start the run (exit code 127)", errors)

    def test_an_interrupt_leaves_nothing(self):
        hosts = self.hosts(2)
        hosts.shape("200mbit")  # so that the measurement takes some seconds
        for word in ("--dry-run", "host-network"):  # while the hosts are asked, and while they measure
            job = self.start(hosts, "--hosts", "host0,host1")
            while not self.runs(hosts, "host1", word):
                self.assertIsNone(job.poll(), word)
            job.send_signal(signal.SIGINT)
            out, errors = job.communicate(timeout=DEADLINE_S)
            self.assertEqual(job.returncode, 130, out + errors)
            self.assert_nothing_left(hosts)

    @staticmethod
    def runs(hosts: Hosts, host: str, word: str) -> bool:
        """Returns whether an rp-launch with this word runs on the host."""
        for pid in hosts.processes_named(host, "rp-launch"):
            try:
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return True
            except OSError:
                pass  # it has ended
        return False


if __name__ == "__main__":
    unittest.main()
