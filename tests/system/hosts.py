#!/usr/bin/env python3
"""Several hosts on one machine, for tests of runs on several nodes.

    with Hosts(2, directory) as hosts:
        subprocess.run(hosts.mpirun(["rp-launch", ...]))

A host is a set of namespaces of the kernel: it has its own network, host name and /dev/shm, and its own directory for
temporary files. Its processors, its other files and its process numbers are the machine's. The hosts are joined by a
switch, which is a network namespace of its own, so they reach each other and nothing else, and several sets of hosts
at the same time do not meet.

The namespaces have no names. A process of each host sleeps in them and so keeps them, and a keeper, which is this file
run as a program, waits for the end of the test. It then kills all processes in the namespaces, and the kernel removes
what nothing uses: also after a SIGKILL of the test, because the keeper sees only that its standard input ends.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SUBNET = "10.77.0"  # the same in all sets of hosts, because they do not meet
PROGRAMS = ["ip", "tc", "nsenter", "unshare", "setpriv"]
# Sleeps in its new namespaces. $1: name; $2: directory; $3: size of /dev/shm.
HOLD = """
hostname "$1"
mount -t tmpfs -o "size=$3" tmpfs /dev/shm
mount --bind "$2/hosts" /etc/hosts
ip link set lo up
echo ready
exec sleep infinity >/dev/null 2>&1
"""


class NoHosts(Exception):
    """Raised if this machine cannot have several hosts; the message is the reason."""


class Hosts:
    """A context manager of `num` hosts, named host0, host1, …, whose files are in `directory`."""

    def __init__(self, num: int, directory: Path, shm: str = "1g"):
        self.names = [f"host{index}" for index in range(num)]
        self.directory = Path(directory)
        self._shm = shm
        self._holders = {}  # by host: the process that keeps its namespaces; "switch" is one of them

    def __enter__(self) -> "Hosts":
        if os.geteuid():
            raise NoHosts("only root can make network namespaces")
        for program in PROGRAMS:
            if shutil.which(program) is None:
                raise NoHosts(f"there is no program {program}")
        keeper = [sys.executable, __file__, str(self.directory), self._shm, *self.names]
        # In a session of its own, so that a Ctrl-C for the test does not reach it.
        self._keeper = subprocess.Popen(keeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        start_new_session=True)
        self._keeper.wait()  # it goes on as a child of init
        answer = self._keeper.stdout.readline()
        if not answer.startswith("pids "):
            raise NoHosts("cannot make the namespaces: " + answer + self._end_keeper())
        self._holders = dict(zip(["switch", *self.names], map(int, answer.split()[1:])))
        self._agent = self.directory / "agent"
        self._agent.write_text(self._agent_script())
        self._agent.chmod(0o755)
        return self

    def __exit__(self, *exception) -> None:
        self._end_keeper()

    def _end_keeper(self) -> str:
        """Returns what the keeper has still written. It has then removed everything."""
        self._keeper.stdin.close()
        with self._keeper.stdout as rest:
            return rest.read()

    def temporary(self, host: str) -> Path:
        """Returns the TMPDIR of a host."""
        return self.directory / host / "tmp"

    def address(self, host: str) -> str:
        return f"{SUBNET}.{1 + self.names.index(host)}"

    def command(self, host: str, args: list[str]) -> list[str]:
        """Returns a command that runs `args` on a host, in the directory of the caller. Its process becomes that of
        `args`, so signals and the exit code are those of `args`."""
        enter = _enter(self._holders[host], "net", "uts", "mount")
        return [*enter, f"--wdns={os.getcwd()}", "env", f"TMPDIR={self.temporary(host)}", *args]

    def _agent_script(self) -> str:
        """Returns the program that Open MPI runs instead of ssh: with a host and the words of a shell's command."""
        cases = "".join(f"{host}) set -- {shlex.join(self.command(host, ['sh', '-c']))} \"$*\" ;;\n" for host in self.names)
        cut = shlex.quote(str(self.directory))
        return f"""#!/bin/sh
# As ssh would: it cannot reach a host whose connection is cut.
for end in {self.names[0]} "$1"; do
  if test -e {cut}/$end/cut; then echo "no route to $1" >&2; exit 255; fi
done
host=$1
shift
case $host in
{cases}*) echo "no host $host" >&2; exit 255 ;;
esac
exec "$@"
"""

    def mpirun(self, args: list[str], hosts: list[str] | None = None, options: tuple[str, ...] = ()) -> list[str]:
        """Returns a command that runs mpirun on the first host, which starts `args` once on each of `hosts` (default:
        all). The first host has rank 0, whatever the order of `hosts`."""
        names = ",".join(f"{host}:8" for host in hosts or self.names)
        return self._mpirun(["--map-by", "ppr:1:node", "--host", names, *options, *args])

    def mpirun_each(self, args_of_hosts: dict[str, list[str]]) -> list[str]:
        """The same, where each host has a command of its own."""
        words = []
        for host, args in args_of_hosts.items():
            words += [*([":"] if words else []), "--host", host, "-n", "1", *args]
        return self._mpirun(words)

    def _mpirun(self, args: list[str]) -> list[str]:
        if shutil.which("mpirun") is None:
            raise NoHosts("there is no program mpirun")
        words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-x", "UCX_MEM_EVENTS=no"]
        for name, value in self._mpi_settings().items():
            words += ["--mca", name, value]
        return self.command(self.names[0], [*words, *args])

    def mpi_environment(self) -> dict[str, str]:
        """Returns the variables for programs on the hosts that start mpirun, or are started by srun."""
        return {f"OMPI_MCA_{name}": value for name, value in self._mpi_settings().items()} | {"UCX_MEM_EVENTS": "no"}

    def _mpi_settings(self) -> dict[str, str]:
        return {
            "plm_rsh_agent": str(self._agent), "plm_rsh_no_tree_spawn": "1",
            "pml": "ob1", "btl": "tcp,self", "osc": "^ucx", "memory": "^patcher",
            "btl_tcp_if_include": f"{SUBNET}.0/24", "oob_tcp_if_include": f"{SUBNET}.0/24",
            # A daemon finds out after 5 s that another one cannot be reached, and not after 8 minutes.
            "oob_tcp_keepalive_time": "2", "oob_tcp_keepalive_intvl": "1", "oob_tcp_keepalive_probes": "3",
        }

    def shape(self, rate: str) -> None:
        """Limits what each host sends, and what it receives from all others, to a rate in the notation of tc: for
        example 10gbit."""
        limit = ["root", "tbf", "rate", rate, "burst", "2mb", "latency", "10ms"]
        for index, host in enumerate(self.names):
            for end, device in ((host, "eth0"), ("switch", f"port{index}")):
                _run([*_enter(self._holders[end], "net"), "tc", "qdisc", "replace", "dev", device, *limit])

    def set_mtu(self, num_bytes: int) -> None:
        """Changes the length of the longest frame of all hosts."""
        for index, host in enumerate(self.names):
            for end, device in ((host, "eth0"), ("switch", f"port{index}")):
                _run([*_enter(self._holders[end], "net"), "ip", "link", "set", "dev", device, "mtu", str(num_bytes)])

    def cut(self, host: str) -> None:
        """Ends the connection of a host with all others as a pulled cable does: neither side is informed."""
        self._set_port(host, "down")
        (self.directory / host / "cut").touch()

    def restore(self, host: str) -> None:
        self._set_port(host, "up")
        while "state UP" not in _output([*_enter(self._holders[host], "net"), "ip", "link", "show", "eth0"]):
            time.sleep(0.02)  # the kernel informs the other end within a second
        for name in self.names:  # for a while, the kernel refuses at once what it could not reach before
            _run([*_enter(self._holders[name], "net"), "ip", "neigh", "flush", "dev", "eth0"])
        (self.directory / host / "cut").unlink()

    def separate(self, hosts: list[str]) -> None:
        """Ends the connections of these hosts with each other, as a firewall does that drops what it does not know. They
        still reach the others."""
        for host in hosts:
            _run([*_enter(self._holders["switch"], "net"), "ip", "link", "set", f"port{self.names.index(host)}",
                  "type", "bridge_slave", "isolated", "on"])

    def _set_port(self, host: str, state: str) -> None:
        _run([*_enter(self._holders["switch"], "net"), "ip", "link", "set", f"port{self.names.index(host)}", state])

    def processes(self, host: str) -> list[int]:
        """Returns the processes that run on a host, without zombies."""
        return _processes_of([self._holders[host]])

    def process_names(self, host: str) -> list[str]:
        return [name for pid in self.processes(host) if (name := name_of(pid))]

    def processes_named(self, host: str, name: str) -> list[int]:
        return [pid for pid in self.processes(host) if name_of(pid) == name]


def name_of(pid: int) -> str:
    """Returns the name of a process, as ps shows it; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _run(command: list[str], text: str = "") -> None:
    process = subprocess.run(command, input=text, capture_output=True, text=True)
    if process.returncode:
        raise OSError(f"{shlex.join(command)}: {process.stderr}")


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _enter(holder: int, *namespaces: str) -> list[str]:
    return ["nsenter", f"--target={holder}", *(f"--{name}" for name in namespaces)]


def _processes_of(holders: list[int]) -> list[int]:
    """Returns the processes in the network namespaces of these, without these."""
    networks = {os.readlink(f"/proc/{holder}/ns/net") for holder in holders}
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "ns" / "net") in networks:
                found.append(int(entry.name))
        except OSError:
            pass  # it has ended
    return [pid for pid in found if pid not in holders]


def _hold(script: str, *words: str) -> subprocess.Popen:
    """Starts a process in new namespaces, which ends with this one. Waits until its script has printed `ready`."""
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "--mount", "--propagation", "private",
               "bash", "-ec", script, "hold", *words]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    answer = process.stdout.readline()
    if answer != "ready\n":
        raise OSError(answer)
    return process


def _make(directory: Path, shm: str, names: list[str], holders: list[subprocess.Popen]) -> None:
    """Makes the hosts; adds the processes that keep the namespaces to `holders`, that of the switch first."""
    holders.append(_hold("ip link add bridge type bridge; ip link set bridge up; echo ready; exec sleep infinity >/dev/null 2>&1"))
    known = "127.0.0.1 localhost\n" + "".join(f"{SUBNET}.{index + 1} {name}\n" for index, name in enumerate(names))
    cables = ""
    for index, name in enumerate(names):
        (directory / name / "tmp").mkdir(parents=True)
        (directory / name / "hosts").write_text(known)
        holder = _hold(HOLD, name, str(directory / name), shm)
        holders.append(holder)
        cables += f"link add port{index} type veth peer name eth0 netns {holder.pid}\nlink set port{index} master bridge up\n"
    _run(_enter(holders[0].pid, "net") + ["ip", "-batch", "-"], cables)
    for index, holder in enumerate(holders[1:]):
        _run(_enter(holder.pid, "net") + ["ip", "-batch", "-"], f"addr add {SUBNET}.{index + 1}/24 dev eth0\nlink set eth0 up\n")


def _keep(directory: Path, shm: str, names: list[str]) -> None:
    """Makes the hosts, waits until standard input ends, and removes them."""
    holders = []
    try:
        _make(directory, shm, names, holders)
        print("pids", *(holder.pid for holder in holders), flush=True)
        sys.stdin.read()
    except OSError as error:
        print(error, flush=True)
    # A process may start another one between the look at it and its death.
    while left := _processes_of([holder.pid for holder in holders]):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    for holder in holders:
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # so that the keeper is no descendant of the test, and is not killed with it
    _keep(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
