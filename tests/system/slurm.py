"""A Slurm of several nodes on one machine, for tests of batch jobs on several nodes.

    with Hosts(2, directory) as hosts, Slurm(hosts) as slurm:
        slurm.run("sbatch", "--wrap", "srun hostname")

Each host (hosts.py) is a node with its own slurmd; the controller runs on the first host. All files are in the
directory of the hosts, so nothing of the machine's own Slurm is used, and the daemons end with the hosts.
"""

import os
import shutil
import subprocess
import time

from hosts import Hosts, NoHosts

DAEMONS = ["munged", "slurmctld", "slurmscriptd", "slurmd"]  # slurmctld starts slurmscriptd
CPUS = 2  # of each node, whatever the machine has
# A job in the partition `high` preempts those in `low`, which are queued again. They have GRACE_S after the first signals, and
# up to 30 s more, because the controller looks for the end of this time every 30 s.
GRACE_S = 5
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={first}
SlurmUser=root
AuthType=auth/munge
# cred_expire: a job that is queued again waits as long as its credentials are valid, by default 120 s.
AuthInfo=socket={directory}/munge/socket,cred_expire=5
StateSaveLocation={directory}/controller
SlurmctldPidFile={directory}/controller/pid
SlurmctldLogFile={directory}/controller/log
SlurmdSpoolDir={directory}/%n/slurmd
SlurmdPidFile={directory}/%n/slurmd.pid
TmpFS={directory}/%n/tmp
SlurmdLogFile={directory}/%n/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# sched_interval: a job that is queued again is looked at after 1 s, and not after 60.
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=5
ReturnToService=2
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


class Slurm:
    """A context manager. The nodes have the names of the hosts. `settings`: more lines of slurm.conf."""

    def __init__(self, hosts: Hosts, settings: str = ""):
        self.hosts = hosts
        self.settings = settings
        self.directory = hosts.directory
        self._daemons = []

    def __enter__(self) -> "Slurm":
        for program in ["munged", "slurmctld", "slurmd"]:
            if shutil.which(program) is None:
                raise NoHosts(f"there is no program {program}")
        self._configure()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception) -> None:
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()

    def command(self, *words: str, host: str | None = None) -> list[str]:
        """Returns a command that runs a program of Slurm on a host (default: the first)."""
        configuration = f"SLURM_CONF={self.directory}/slurm.conf"
        return self.hosts.command(host or self.hosts.names[0], ["env", configuration, *words])

    def run(self, *words: str, timeout: float = 30) -> str:
        """Runs a program of Slurm and returns its output. Raises an AssertionError if it fails."""
        process = subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
        assert process.returncode == 0, f"{words}: exit code {process.returncode}\n{process.stdout}{process.stderr}"
        return process.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Returns the fields of a job as `scontrol show job` prints them."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, number: str, *states: str, timeout: float = 20) -> dict[str, str]:
        """Waits until a job is in one of these states; returns its fields."""
        end = time.monotonic() + timeout
        while (job := self.job(number))["JobState"] not in states:
            assert time.monotonic() < end, f"the job is not {states} after {timeout} s: {job}"
            time.sleep(0.05)
        return job

    def processes(self, host: str) -> list[str]:
        """Returns the names of the processes of jobs on a host, those of Slurm among them that live as long as a job."""
        return [name for name in self.hosts.process_names(host) if name not in DAEMONS]

    def _configure(self) -> None:
        for name in ["munge", "controller", *(f"{host}/slurmd" for host in self.hosts.names)]:
            (self.directory / name).mkdir(parents=True, mode=0o755)
        (self.directory / "munge" / "key").write_bytes(os.urandom(128))
        (self.directory / "munge" / "key").chmod(0o600)
        nodes = "".join(f"NodeName={host} NodeAddr={self.hosts.address(host)} CPUs={CPUS} State=UNKNOWN\n" for host in self.hosts.names)
        text = CONFIGURATION.format(first=self.hosts.names[0], directory=self.directory, grace_s=GRACE_S)
        (self.directory / "slurm.conf").write_text(text + nodes + self.settings)

    def _start(self) -> None:
        # One munged for all hosts: its socket is a file. --force: it is root, and the directory is private.
        munge = self.directory / "munge"
        self._daemon(self.hosts.names[0], "munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
                     f"--log-file={munge}/log", f"--pid-file={munge}/pid", f"--seed-file={munge}/seed")
        self._wait("munged", lambda: (munge / "socket").exists())
        self._daemon(self.hosts.names[0], "slurmctld", "-D")
        for host in self.hosts.names:
            self._daemon(host, "slurmd", "-D", "-N", host)
        self._wait("an idle Slurm", self._is_idle)

    def _daemon(self, host: str, *words: str) -> None:
        with open(self.directory / f"{words[0]}.{host}.output", "wb") as output:
            self._daemons.append(subprocess.Popen(self.command(*words, host=host), stdin=subprocess.DEVNULL, stdout=output, stderr=output))

    def _is_idle(self) -> bool:
        process = subprocess.run(self.command("sinfo", "--noheader", "--Node", "--format=%T"), capture_output=True, text=True)
        return set(process.stdout.split()) == {"idle"}

    def _wait(self, what: str, is_there) -> None:
        end = time.monotonic() + 20
        while not is_there():
            for daemon in self._daemons:
                assert daemon.poll() is None, f"a daemon has ended: {daemon.args}; its output is in {self.directory}"
            assert time.monotonic() < end, f"no {what} after 20 s"
            time.sleep(0.05)
