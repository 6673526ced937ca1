#!/usr/bin/env python3
"""The scripts of examples/batch as they are: in a Slurm of two nodes, and on two hosts with stand-ins for PBS and LSF. Runs that are
interrupted and queued again have the bits of a run of rp-launch that is not."""

import functools
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from hosts import Hosts, NoHosts
from launched import PROGRAMS, SAMPLE, LaunchedTest, bits
from slurm import DAEMONS, Slurm

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "batch"
NUM_STEPS = 30
# Only the batch script gets USR1 when a job is preempted, as README.md there asks.
SETTINGS = "SlurmctldParameters=preempt_send_user_signal\n"


def options(num_steps: int = NUM_STEPS) -> str:
    return (f"--max-steps {num_steps} --batch-size 12 --rounds-per-step 6 --num-microbatches 2 --sequence-length 32 "
            "--learning-rate 1e-3 --warmup-steps 0 --lr-schedule constant")


@functools.cache
def expected() -> tuple:
    """Returns the bits of a run without a batch system."""
    with tempfile.TemporaryDirectory(prefix="rp-batch-") as directory:
        command = [PROGRAMS / "rp-launch", "--workers", "2", "train", "--model", SAMPLE / "model", "--data", SAMPLE / "data.tokens",
                   "--output", directory + "/output", "--seed", "1", *options().split()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
        return bits(Path(directory) / "output")


class BatchTest(LaunchedTest):
    """Two hosts, the same for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        if not (PROGRAMS.parent / "lib" / "libroundpipe_mpi.so").exists():
            raise unittest.SkipTest("this build has no libroundpipe_mpi.so")
        directory = tempfile.TemporaryDirectory(prefix="rp-batch-")
        cls.addClassCleanup(directory.cleanup)
        try:
            cls.hosts = cls.enterClassContext(Hosts(2, Path(directory.name)))
            cls.hosts.mpirun([])
            cls.start_batch_system()
        except NoHosts as reason:
            raise unittest.SkipTest(str(reason))

    @classmethod
    def start_batch_system(cls):
        pass

    def variables(self, num_steps: int = NUM_STEPS) -> dict[str, str]:
        return self.hosts.mpi_environment() | {
            "MODEL": str(SAMPLE / "model"), "DATA": str(SAMPLE / "data.tokens"), "OUTPUT": str(self.output), "PROGRAMS": str(PROGRAMS),
            "OPTIONS": options(num_steps), "RP_WORKERS": "1"}

    def wait_until(self, what: str, condition, within_s: float = 20):
        end = time.monotonic() + within_s
        while not condition():
            self.assertLess(time.monotonic(), end, f"not {what}; the output of the job:\n{self.text()}")
            time.sleep(0.02)

    def text(self) -> str:
        """Returns what the job has printed so far."""
        log = self.directory / "log"
        return log.read_text() if log.exists() else ""

    def wait_for_a_step(self):
        self.wait_until("in training", lambda: re.search("^step +[0-9]+/", self.text(), re.MULTILINE))

    def names(self, host: str) -> list[str]:
        """Returns the names of the processes of jobs on a host."""
        return [name for name in self.hosts.process_names(host) if name not in DAEMONS]

    def assert_hosts_clean(self):
        self.wait_until("without processes", lambda: not any(map(self.names, self.hosts.names)))
        for host in self.hosts.names:
            files = subprocess.run(self.hosts.command(host, ["ls", "-A", "/dev/shm"]), capture_output=True, text=True, check=True).stdout
            self.assertEqual(files, "", f"shared memory is left on {host}")

    def assert_trained(self, num_nodes: int, output: Path | None = None):
        output = output or self.output
        self.assertEqual(bits(output), expected())
        self.assertEqual((output / "nodes" / str(num_nodes - 1)).exists(), num_nodes > 1)
        self.assertFalse((output / "nodes" / str(num_nodes)).exists())


class SlurmScriptTest(BatchTest):
    @classmethod
    def start_batch_system(cls):
        cls.slurm = cls.enterClassContext(Slurm(cls.hosts, SETTINGS))

    def submit(self, *words: str, num_steps: int = NUM_STEPS) -> str:
        """Submits train.sbatch with these options; returns the number of the job."""
        variables = [f"{name}={value}" for name, value in self.variables(num_steps).items()]
        small = ["--cpus-per-task=1", "--mem=0"]  # of the nodes of the tests
        return self.slurm.run("env", *variables, "sbatch", "--parsable", f"--output={self.directory}/log", *small, *words,
                              str(SCRIPTS / "train.sbatch"))

    def warn(self, job: str):
        self.slurm.run("scancel", "--signal=USR1", "--batch", job)

    def wait_for_end(self, job: str, restarts: int):
        fields = self.slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", timeout=40)
        self.assertEqual((fields["JobState"], fields["Restarts"]), ("COMPLETED", str(restarts)), self.text())
        self.assert_hosts_clean()

    def test_one_node_and_two_have_the_bits_of_a_run_without_slurm(self):
        for num_nodes in (1, 2):
            self.output = self.directory / f"on-{num_nodes}"
            self.wait_for_end(self.submit(f"--nodes={num_nodes}"), restarts=0)
            self.assert_trained(num_nodes)

    def test_a_preempted_job_is_queued_again_and_goes_on(self):
        job = self.submit("--nodes=2", "--partition=low", "--exclusive")
        self.wait_for_a_step()
        urgent = self.slurm.run("sbatch", "--parsable", "--nodes=2", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap", "true")
        self.slurm.wait_for(urgent, "COMPLETED", timeout=30)
        self.assertEqual(self.slurm.job(job)["JobState"], "PENDING", self.text())
        self.wait_for_end(job, restarts=1)
        self.assertRegex(self.text(), "stopped by SIGUSR1 after step [0-9]+;(.*\n)*note: resumes from")
        self.assert_trained(2)

    def test_a_cancelled_job_leaves_nothing_and_is_not_queued_again(self):
        job = self.submit("--nodes=2", num_steps=10_000)
        self.wait_for_a_step()
        self.warn(job)  # it is about to queue itself again
        self.slurm.run("scancel", job)
        self.assert_hosts_clean()
        fields = self.slurm.wait_for(job, "CANCELLED", "PENDING", "RUNNING", "COMPLETED", "FAILED")
        self.assertEqual((fields["JobState"], fields["Restarts"]), ("CANCELLED", "0"), self.text())

    def test_a_job_that_is_warned_of_its_end_is_queued_again_even_before_it_trains(self):
        job = self.submit("--nodes=1")
        self.wait_until("started", lambda: "rp-launch" in self.names("host0") + self.names("host1"))
        self.warn(job)
        self.wait_until("started again", lambda: self.slurm.job(job)["Restarts"] == "1")
        self.wait_for_a_step()
        self.warn(job)
        self.wait_for_end(job, restarts=2)
        self.assertEqual(self.text().count("note: resumes from"), 1, self.text())
        self.assert_trained(1)

    def test_a_heterogeneous_job_is_one_run_and_an_array_is_several(self):
        # The options of the script, and those before the colon, are of the first part only.
        self.wait_for_end(self.submit("--nodes=1", ":", "--nodes=1", "--mem=0"), restarts=0)
        self.assert_trained(2)
        self.output = self.directory / "array"
        job = self.submit("--array=1-2")
        for task in ("1", "2"):
            self.slurm.wait_for(f"{job}_{task}", "COMPLETED", timeout=40)
        self.assert_trained(1, self.output / "1")
        self.assertNotEqual(bits(self.output / "2"), expected(), "the seeds differ")


class OtherScriptsTest(BatchTest):
    def stand_in(self, name: str, text: str):
        path = self.directory / name
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)

    def start(self, script: str, variables: dict[str, str], num_steps: int = NUM_STEPS) -> subprocess.Popen:
        """Starts a script on the first host, as the leader of a session."""
        environment = os.environ | self.variables(num_steps) | variables | {"PATH": f"{self.directory}:{os.environ['PATH']}"}
        with open(self.directory / "log", "w") as log:
            process = subprocess.Popen(self.hosts.command("host0", ["bash", str(SCRIPTS / script)]), env=environment,
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.addCleanup(process.kill)
        return process

    def end(self, process: subprocess.Popen, code: int):
        self.assertEqual(process.wait(timeout=40), code, self.text())
        self.assert_hosts_clean()

    def test_a_pbs_job_submits_itself_again_at_the_end_of_its_time_only(self):
        hosts = self.directory / "nodes"
        hosts.write_text("host0\nhost1\n")
        self.stand_in("qsub", f"echo \"$@\" >> {self.directory}/submitted\n")
        submitted = self.directory / "submitted"
        variables = {"PBS_NODEFILE": str(hosts), "PBS_O_WORKDIR": str(self.directory), "SCRIPT": "my.pbs"}
        # qdel: TERM to all processes of the job.
        process = self.start("train.pbs", variables, num_steps=10_000)
        self.wait_for_a_step()
        os.killpg(process.pid, signal.SIGTERM)
        self.assertNotEqual(process.wait(timeout=40), 0)
        self.assert_hosts_clean()
        self.assertFalse(submitted.exists(), "a job that is deleted submits itself again")
        # The end of the time, as --time-limit has it.
        process = self.start("train.pbs", variables)
        self.wait_for_a_step()
        subprocess.run(["pkill", "-USR1", "-P", str(process.pid)], check=True)
        self.end(process, 75)
        self.assertEqual(submitted.read_text(), "my.pbs\n")
        self.end(self.start("train.pbs", variables), 0)
        self.assertEqual(submitted.read_text(), "my.pbs\n")
        self.assert_trained(2)

    def test_an_lsf_job_ends_with_75_only_when_it_was_warned(self):
        self.stand_in("blaunch", f"exec {self.hosts.directory}/agent \"$@\"\n")
        variables = {"LSB_HOSTS": "host0 host1"}
        process = self.start("train.lsf", variables, num_steps=10_000)
        self.wait_for_a_step()
        process.terminate()  # bkill; the run ends with 75
        self.end(process, 143)
        process = self.start("train.lsf", variables)
        self.wait_for_a_step()
        os.killpg(process.pid, signal.SIGUSR1)
        self.end(process, 75)


if __name__ == "__main__":
    unittest.main()
