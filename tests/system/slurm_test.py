#!/usr/bin/env python3
"""Slurm on several hosts: steps with PMIx, mpirun in a job, a preempted job, and that nothing of a cancelled job is
left."""

import tempfile
import time
import unittest
from pathlib import Path

from hosts import Hosts, NoHosts
from slurm import Slurm

# Ends its step when the job is preempted, and is then queued again, as a run that ends with exit code 75 is.
REQUEUED = """#!/bin/sh
if [ "$SLURM_RESTART_COUNT" ]; then exit 0; fi
srun --kill-on-bad-exit=1 sleep 1000
scontrol requeue "$SLURM_JOB_ID"
sleep 1000
"""


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="rp-system-")
        cls.addClassCleanup(directory.cleanup)
        cls.directory = Path(directory.name)
        try:
            cls.hosts = cls.enterClassContext(Hosts(2, cls.directory))
            cls.slurm = cls.enterClassContext(Slurm(cls.hosts))
        except NoHosts as reason:
            raise unittest.SkipTest(str(reason))

    def submit(self, script: str, *options: str) -> str:
        """Returns the number of a job, which writes to the file with that number."""
        path = self.directory / "script"
        path.write_text(script)
        return self.slurm.run("sbatch", "--parsable", "--nodes=2", "--exclusive", f"--output={self.directory}/%j", *options, str(path))

    def assert_nothing_left(self, within_s: float):
        end = time.monotonic() + within_s
        while left := {name: self.slurm.processes(name) for name in self.hosts.names if self.slurm.processes(name)}:
            self.assertLess(time.monotonic(), end, left)
            time.sleep(0.05)

    def test_a_step_has_a_rank_on_each_node(self):
        say = ["sh", "-c", "echo $(hostname) $PMIX_RANK $SLURM_PROCID of $SLURM_NTASKS"]
        output = self.slurm.run("srun", "--nodes=2", "--mpi=pmix", *say)
        self.assertEqual(sorted(output.splitlines()), ["host0 0 0 of 2", "host1 1 1 of 2"])
        self.assert_nothing_left(within_s=5)

    def test_mpirun_starts_on_the_nodes_of_its_job(self):
        job = self.submit("#!/bin/sh\nmpirun --allow-run-as-root --map-by ppr:1:node --mca oob_tcp_if_include eth0 hostname\n")
        self.slurm.wait_for(job, "COMPLETED")
        self.assertEqual(sorted((self.directory / job).read_text().split()), ["host0", "host1"])
        self.assert_nothing_left(within_s=5)

    def test_a_preempted_job_is_queued_again(self):
        job = self.submit(REQUEUED, "--partition=low")
        self.slurm.wait_for(job, "RUNNING")
        urgent = self.submit("#!/bin/sh\n", "--partition=high")
        self.slurm.wait_for(urgent, "COMPLETED")
        fields = self.slurm.wait_for(job, "COMPLETED", timeout=30)
        self.assertEqual(fields["Restarts"], "1")
        self.assert_nothing_left(within_s=5)

    def test_nothing_is_left_of_a_cancelled_job(self):
        job = self.submit("#!/bin/sh\nsrun --mpi=pmix sleep 1000\n")
        self.slurm.wait_for(job, "RUNNING")
        self.slurm.run("scancel", job)
        self.slurm.wait_for(job, "CANCELLED")
        self.assert_nothing_left(within_s=10)


if __name__ == "__main__":
    unittest.main()
