#!/usr/bin/env python3
"""rp-launch doctor, ps and top for several hosts, which are namespaces whose network has a known rate."""

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
DEADLINE_S = 120


class HostsProgramsTest(unittest.TestCase):
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

    def start(self, hosts: Hosts, *words: str, on: str = "host0") -> subprocess.Popen:
        """Starts rp-launch on a host."""
        job = subprocess.Popen(hosts.command(on, [str(PROGRAMS / "rp-launch"), *words]), env=os.environ | hosts.mpi_environment(),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)
        return job

    def run_on(self, hosts: Hosts, *words: str, on: str = "host0", expect: int = 0) -> tuple[str, str]:
        """Returns what rp-launch prints, and its errors."""
        job = self.start(hosts, *words, on=on)
        out, errors = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, expect, out + errors)
        return out, errors

    def assert_nothing_left(self, hosts: Hosts, within_s: float = 5):
        end = time.monotonic() + within_s
        while left := [name for host in hosts.names for name in hosts.process_names(host)]:
            self.assertLess(time.monotonic(), end, f"processes are left: {left}")
            time.sleep(0.02)
        self.assertEqual([str(path) for path in hosts.temporary("host0").glob("rp-launch-*")], [])


class HostsDoctorTest(HostsProgramsTest):
    def doctor(self, hosts: Hosts, *options: str, expect: int = 0) -> tuple[str, str]:
        result = self.run_on(hosts, "doctor", *options, expect=expect)
        self.assert_nothing_left(hosts)
        return result

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
        # While the hosts are asked, and while they measure.
        for begins in (lambda: hosts.processes_named("host0", "mpirun"), lambda: self.runs(hosts, "host1", "host-network")):
            job = self.start(hosts, "doctor", "--hosts", "host0,host1")
            while not begins():
                self.assertIsNone(job.poll())
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


class HostsViewTest(HostsProgramsTest):
    def setUp(self):
        """Starts a run on two of three hosts."""
        self.three = self.hosts(3)
        self.job = self.start(self.three, "--hosts", "host0:1,host1:2", "sh", "-c", "echo ready; exec sleep 1000")
        for _ in range(2):
            self.assertIn("ready", self.job.stdout.readline())

    def end_run(self):
        for _ in range(2):  # its program knows no request to end
            self.job.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        self.job.communicate(timeout=DEADLINE_S)
        self.assert_nothing_left(self.three)

    def launcher(self, host: str) -> int:
        """Returns the process that is the run's rp-launch on a host. The hosts have the machine's process numbers, so ps
        finds the runs of all of them on each."""
        parents = {pid: self.parent_of(pid) for pid in self.three.processes_named(host, "rp-launch") if self.has_workers(pid)}
        # A process that rp-launch has just forked is not its program yet.
        (launcher,) = (pid for pid, parent in parents.items() if parent not in parents)
        return launcher

    @staticmethod
    def has_workers(pid: int) -> bool:
        return b"\0--workers\0" in Path(f"/proc/{pid}/cmdline").read_bytes()

    @staticmethod
    def parent_of(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def test_ps_and_top_group_the_runs_by_host(self):
        first, second = self.launcher("host0"), self.launcher("host1")
        out, _ = self.run_on(self.three, "ps", "--hosts", "host0,host2")
        self.assertEqual([line for line in out.splitlines() if line.startswith("host ")], ["host host0", "host host2"])
        self.assertRegex(out.split("host host2")[0], rf"(?m)^run {first}, for ")
        # From any host of a run, all of its hosts are known.
        out, _ = self.run_on(self.three, "top", "--all-nodes", "--json", "--count", "2", "--interval", "0.2", on="host1")
        views = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([[host["host"] for host in view["hosts"]] for view in views], [["host0", "host1"]] * 2)
        for host in views[1]["hosts"]:
            self.assertEqual(host["problem"], "")
            self.assertLessEqual({first, second}, {run["pid"] for run in host["runs"]})
        self.end_run()

    def test_a_host_that_is_lost_keeps_its_last_view_and_top_leaves_nothing(self):
        top = self.start(self.three, "top", "--hosts", "host0,host2", "--interval", "0.2", "--json")
        self.assertEqual([host["problem"] for host in json.loads(top.stdout.readline())["hosts"]], ["", ""])
        self.three.cut("host2")
        problems = ["", ""]
        while not problems[1]:
            problems = [host["problem"] for host in json.loads(top.stdout.readline())["hosts"]]
        self.assertRegex(problems[1], "does not answer|has ended")
        self.assertEqual(problems[0], "")
        end = time.monotonic() + DEADLINE_S
        while left := self.three.process_names("host2"):
            self.assertLess(time.monotonic(), end, f"processes are left on the host that is cut off: {left}")
            top.stdout.readline()
        top.send_signal(signal.SIGINT)
        top.communicate(timeout=DEADLINE_S)
        self.assertEqual(top.returncode, 130)
        self.three.restore("host2")
        self.end_run()

    def test_a_host_that_cannot_be_reached_has_its_reason_as_its_view(self):
        self.three.cut("host2")
        out, _ = self.run_on(self.three, "ps", "--hosts", "host0,host2", expect=69)
        self.assertRegex(out, r"(?m)^host host0\nrun ")
        of_host2 = out.split("host host2\n")[1]
        self.assertIn("  no route to host2\n  rp-launch: host host2 cannot be reached", of_host2)
        self.assertNotIn("\nrun ", of_host2)
        self.end_run()


if __name__ == "__main__":
    unittest.main()
