#!/usr/bin/env python3
"""Runs train on several nodes, and again and again kills a process of the run or cuts a node off: how long until no process of
it is left on any node, whether anything is left, and whether the run that goes on has the bits of a run on one node.

    benchmarks/kill_nodes.py --kills 50 --seed 1

The nodes are hosts in network namespaces (tests/system/hosts.py). Each life of the run has 2 to 4 nodes, one of which may have
two workers. It begins with `rp-launch --hosts` from the newest checkpoint, makes at least one step more, and ends by one of these, in
turn: SIGKILL of mpirun, of a node's launcher, of a coordinator, of the rp-launch that was started, a cut connection, or a cut
connection while no node runs on the host of mpirun. With --restart, rp-launch itself goes on after each of them (but after its own
death), with the hosts that still answer. Needs the release build and the small model of its tests."""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kill_workers import quantiles  # sets the paths for launched
from launched import PROGRAMS, bits, settings

from hosts import Hosts, name_of

FAULTS = ["mpirun", "launcher", "coordinator", "first", "cut", "cut-elsewhere"]
NAMES = {"mpirun": "mpirun", "launcher": "rp-launch", "coordinator": "train:coord"}
LIMIT_S = 60


def last_step(output: Path) -> int:
    """Returns the step of the newest checkpoint; 0 if there is none."""
    return max((int(path.parent.name.split("-")[1]) for path in output.glob("checkpoint-*/state.json")), default=0)


class Trial:
    def __init__(self, hosts: Hosts, output: Path, changes: dict, restarts: bool, rng: random.Random):
        self.hosts, self.output, self.restarts, self.rng = hosts, output, restarts, rng
        self.train = [*settings(output, **changes), "--resume", "auto"]
        self.seconds = {fault: [] for fault in FAULTS}
        self.problems = []

    def start(self, nodes: list[str]) -> subprocess.Popen:
        workers = [1] * len(nodes)
        workers[self.rng.randrange(len(nodes))] += self.rng.randrange(2)
        names = ",".join(f"{name}:{num}" for name, num in zip(nodes, workers))
        policy = ["--on-node-failure", "restart"] if self.restarts else []
        words = [str(PROGRAMS / "rp-launch"), "--node-timeout", "2", *policy, "--hosts", names, "train", *self.train]
        self.log = self.output.with_suffix(".log")
        with self.log.open("w") as log:
            return subprocess.Popen(self.hosts.command("host0", words), env=os.environ | self.hosts.mpi_environment(), stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=log, start_new_session=True)

    def wait_for_step(self, job: subprocess.Popen, step: int) -> bool:
        end = time.monotonic() + LIMIT_S
        while job.poll() is None and time.monotonic() < end:
            if last_step(self.output) > step:
                return True
            time.sleep(0.01)
        return False

    def fail(self, job: subprocess.Popen, fault: str, nodes: list[str]) -> str | None:
        """Lets the fault happen. Returns the host that was cut off."""
        host = self.rng.choice(nodes)
        if fault in ("cut", "cut-elsewhere"):
            host = self.rng.choice([name for name in nodes if name != self.hosts.names[0]])
            self.hosts.cut(host)
            return host
        if fault == "first":
            job.kill()
            return None
        if fault == "mpirun":
            host = self.hosts.names[0]
        victims = [pid for pid in self.hosts.processes_named(host, NAMES[fault]) if pid != job.pid]
        if victims:
            subprocess.run(["kill", "-s", "KILL", str(self.rng.choice(victims))], check=False)
        return None

    def left(self) -> dict:
        return {name: [f"{pid} {name_of(pid)}" for pid in pids] for name in self.hosts.names if (pids := self.hosts.processes(name))}

    def check_ended(self, fault: str):
        begin = time.monotonic()
        while left := self.left():
            if time.monotonic() > begin + LIMIT_S:
                self.problems.append(f"{fault}: left after {LIMIT_S} s: {left}")
                return
            time.sleep(0.01)
        self.seconds[fault].append(time.monotonic() - begin)
        for name in self.hosts.names:
            files = subprocess.run(self.hosts.command(name, ["ls", "-A", "/dev/shm"]), capture_output=True, text=True, check=True).stdout
            if files:
                self.problems.append(f"{fault}: shared memory is left on {name}: {files}")

    def one(self, fault: str):
        first = 1 if fault == "cut-elsewhere" else 0  # mpirun runs on the host 0
        nodes = self.hosts.names[first:][:self.rng.randint(2, 4 - first)]
        step = last_step(self.output)
        job = self.start(nodes)
        if not self.wait_for_step(job, step):
            self.problems.append(f"no step after {step}, exit code {job.poll()}: {self.log.read_text()[-2000:]}")
            job.kill()
            return
        time.sleep(self.rng.uniform(0, 0.5))
        if job.poll() is not None:
            self.problems.append("the run ended before the fault")
            return
        cut = self.fail(job, fault, nodes)
        if self.restarts and fault != "first":
            while job.poll() is None and "starting the program again" not in self.log.read_text():
                time.sleep(0.05)
            if not self.wait_for_step(job, last_step(self.output)):
                self.problems.append(f"{fault}: it does not go on: {self.log.read_text()[-2000:]}")
            job.send_signal(signal.SIGUSR1)
            if job.wait() != 75:
                self.problems.append(f"{fault}: exit code {job.returncode} after USR1: {self.log.read_text()[-2000:]}")
        self.check_ended(fault)
        if job.wait() == 0:
            self.problems.append(f"{fault}: exit code 0")
        if cut:
            self.hosts.restore(cut)
        print(f"{fault} on {len(nodes)} nodes after step {step}: "
              f"{self.seconds[fault][-1] if self.seconds[fault] else -1:.2f} s, exit code {job.returncode}", flush=True)

    def finish(self):
        job = self.start(self.hosts.names[:2])
        if job.wait() != 0:
            self.problems.append(f"the last life: exit code {job.returncode}: {self.log.read_text()[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS, help="only this one")
    parser.add_argument("--restart", action="store_true", help="rp-launch goes on by itself")
    arguments = parser.parse_args()
    faults = [arguments.fault] if arguments.fault else FAULTS
    rng = random.Random(arguments.seed)
    # Each life makes some steps; enough are left for the last one.
    changes = {"max_steps": 60 * arguments.kills + 20, "batch_size": 12, "num_microbatches": 2, "rounds_per_step": 6, "save_every": 1,
               "save_total_limit": 2}
    with tempfile.TemporaryDirectory(prefix="rp-") as name:
        directory = Path(name)
        (directory / "hosts").mkdir()
        with Hosts(4, directory / "hosts") as hosts:
            trial = Trial(hosts, directory / "killed", changes, arguments.restart, rng)
            for index in range(arguments.kills):
                trial.one(faults[index % len(faults)])
            done = last_step(trial.output)
            trial.train = [*settings(trial.output, **(changes | {"max_steps": done + 5})), "--resume", "auto"]
            trial.finish()
        alone = directory / "alone"
        words = settings(alone, **(changes | {"max_steps": done + 5, "save_every": "never"}))
        subprocess.run([str(PROGRAMS / "rp-launch"), "--workers", "2", "train", *words], check=True, capture_output=True)
        same = bits(trial.output, "model.safetensors")[1] == bits(alone, "model.safetensors")[1]
    if not same:
        trial.problems.append(f"after {done + 5} steps the bits are not those of a run on one node")
    for problem in trial.problems:
        print(problem)
    for fault in faults:
        if trial.seconds[fault]:
            print(f"{fault}: no process left on any node after {quantiles(trial.seconds[fault])}")
    longest = max((max(seconds) for seconds in trial.seconds.values() if seconds), default=0)
    print(f"{arguments.kills} faults, {len(trial.problems)} problems; the slowest end took {longest:.2f} s; "
          f"{'the same bits as on one node' if same else 'OTHER BITS'}")
    return 1 if trial.problems else 0


if __name__ == "__main__":
    sys.exit(main())
