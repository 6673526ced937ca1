#!/usr/bin/env python3
"""Runs of train on several nodes: hosts in namespaces, connected by Open MPI. Weights and losses are those of one node,
bit for bit."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from hosts import Hosts, NoHosts
from launched import DEADLINE_S, PROGRAMS, SAMPLE, LaunchedTest, bits, settings

MODELS = Path(os.environ["RP_FAMILY_MODELS"])  # created by make_family_models.py
ROUNDS = 6


class NodesTest(LaunchedTest):
    def hosts(self, num: int) -> Hosts:
        """Returns hosts that are removed at the end of the test."""
        if not (PROGRAMS.parent / "lib" / "libroundpipe_mpi.so").exists():
            self.skipTest("this build has no libroundpipe_mpi.so")
        directory = self.directory / "hosts"
        directory.mkdir()
        try:
            hosts = self.enterContext(Hosts(num, directory))
            hosts.mpirun([])
        except NoHosts as reason:
            self.skipTest(str(reason))
        return hosts

    def arguments(self, output: Path, **changes) -> list[str]:
        return settings(output, **({"batch_size": 12, "num_microbatches": 2, "rounds_per_step": ROUNDS} | changes))

    def launch(self, hosts: Hosts, workers: list[int], train: list[list[str]]) -> list[str]:
        """Returns the command of a run on the first hosts with these numbers of workers. `train`: the arguments of each
        node, or one list for all."""
        names = hosts.names[:len(workers)]
        each = train if len(train) > 1 else train * len(workers)
        return hosts.mpirun_each({name: [str(PROGRAMS / "rp-launch"), "--workers", str(num), "train", *args]
                                  for name, num, args in zip(names, workers, each)})

    def start(self, hosts: Hosts, launch: list[str], workers: list[int], train: list[str], first: int = 0) -> subprocess.Popen:
        """Starts `rp-launch --hosts` on host 0. `first`: the host that is node 0."""
        names = ",".join(f"{name}:{num}" for name, num in zip(hosts.names[first:], workers))
        command = [str(PROGRAMS / "rp-launch"), *launch, "--hosts", names, "train", *train]
        job = subprocess.Popen(hosts.command("host0", command), env=os.environ | hosts.mpi_environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)
        return job

    def wait_for_a_step(self, job: subprocess.Popen):
        while (line := job.stdout.readline()) and not re.match(r"(\[coordinator\] )?step +[0-9]+/", line):
            pass

    def run_nodes(self, hosts: Hosts, workers: list[int], *train: list[str], expect: int = 0) -> subprocess.CompletedProcess:
        process = subprocess.run(self.launch(hosts, workers, list(train)), capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(process.returncode, expect, process.stdout[-3000:] + process.stderr[-3000:])
        self.assert_hosts_empty(hosts)
        return process

    def assert_hosts_empty(self, hosts: Hosts, within_s: float = 5):
        end = time.monotonic() + within_s
        while (left := {name: hosts.processes(name) for name in hosts.names}) != {name: [] for name in hosts.names}:
            self.assertLess(time.monotonic(), end, f"processes are left: {left}")
            time.sleep(0.02)
        for name in hosts.names:
            files = subprocess.run(hosts.command(name, ["ls", "-A", "/dev/shm"]), capture_output=True, text=True, check=True).stdout
            self.assertEqual(files, "", f"shared memory is left on {name}")

    def results(self, output: Path) -> tuple:
        return bits(output, next((output / "final").glob("*.safetensors")).name)

    def same_bits(self, **changes) -> Hosts:
        one = self.directory / "one"
        self.run_train(self.arguments(one, **changes))
        expected = self.results(one)
        hosts = self.hosts(4)
        for workers in ([1, 1], [1, 2, 1], [1, 1, 1, 1]):
            output = self.directory / f"nodes-{len(workers)}"
            self.run_nodes(hosts, workers, self.arguments(output, **changes))
            self.assertEqual(self.results(output), expected, f"{len(workers)} nodes")
            for node in range(1, len(workers)):
                log = output / "nodes" / str(node) / "metrics.jsonl"
                self.assertEqual(len(log.read_text().splitlines()), len(expected[0]), f"the log of node {node}")
        return hosts

    def test_synchronous_steps_have_the_bits_of_one_node(self):
        self.same_bits(eval_share=0.1, eval_every=2)

    def test_asynchronous_steps_have_the_bits_of_one_node(self):
        self.same_bits(**{"async": True, "max_grad_norm": 0})

    def test_pairs_have_the_bits_of_one_node(self):
        self.same_bits(lora_rank=4, lora_dropout=0.1)

    def test_corrections_of_routers_have_the_bits_of_one_node(self):
        changes = {"model": MODELS / "glm4_moe", "router_bias_update_rate": 0.02, "save_every": 2}
        hosts = self.same_bits(**changes)
        resumed = self.directory / "resumed"
        self.run_nodes(hosts, [1, 1], self.arguments(resumed, resume=self.directory / "nodes-3" / "checkpoint-2", **changes))
        self.assertEqual(self.results(resumed)[1], self.results(self.directory / "one")[1])

    def test_a_checkpoint_of_any_number_of_nodes_goes_on_on_any_other(self):
        hosts = self.hosts(3)
        for asynchronous in (None, True):
            changes = {"save_every": 2, "async": asynchronous}
            whole = self.directory / f"whole-{asynchronous}"
            self.run_train(self.arguments(whole, **changes))
            three = self.directory / f"three-{asynchronous}"
            self.run_nodes(hosts, [1, 1, 1], self.arguments(three, **changes))
            files = sorted(path.name for path in (three / "checkpoint-2").iterdir())
            self.assertEqual(files, ["XXH128SUMS", *(f"state-{node}-of-3.safetensors" for node in (1, 2, 3)), "state.json"])
            for begun in (whole, three):
                for num_nodes in (1, 2, 3):
                    output = self.directory / "resumed"
                    shutil.rmtree(output, ignore_errors=True)
                    train = self.arguments(output, resume=begun / "checkpoint-2", **changes)
                    if num_nodes == 1:
                        self.run_train(train)
                    else:
                        self.run_nodes(hosts, [1] * num_nodes, train)
                    self.assertEqual(self.results(output)[1], self.results(whole)[1], f"{begun} on {num_nodes} nodes")

    def test_emulated_devices_take_the_time_of_the_network(self):
        """Half of each gradient, and of the new weights, crosses the network in a step."""
        hosts = self.hosts(2)
        hosts.shape("1gbit")
        model = self.directory / "model"
        model.mkdir()
        config = json.loads((SAMPLE / "model" / "config.json").read_text())
        config |= {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
                   "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": False}
        (model / "config.json").write_text(json.dumps(config))
        trace = self.directory / "trace.json"
        train = ["--model", str(model), "--max-grad-norm", "0", "--batch-size", "4", "--num-microbatches", "2", "--rounds-per-step", "2",
                 "--sequence-length", "512", "--max-steps", "10"]
        words = [str(PROGRAMS / "rp-launch"), "--device", "sim:rtx4090", "--workers", "1", "--network", "0.95gbit", "--trace", str(trace)]
        process = subprocess.run(hosts.mpirun([*words, "train", *train]), capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0, process.stderr[-3000:])
        reports = re.findall(r"step +([\d.]+) ms +simulated +([\d.]+) ms", process.stderr)
        self.assertEqual(len(reports), 2, process.stderr)
        parameters = 2 * 4096 * 512 + 4 * (4 * 512 * 512 + 3 * 512 * 1024)
        network_ms = 2 * parameters / (0.95e9 / 8) * 1e3
        for measured, simulated in reports:
            self.assertGreater(float(simulated), network_ms)
            self.assertGreater(float(measured), 0.9 * float(simulated), "never faster than the network")
            self.assertLess(float(measured), 3 * float(simulated))
        for file in (trace, self.directory / "trace-node-1.json"):
            self.assertTrue(json.loads(file.read_text())["traceEvents"], file)
        self.assert_hosts_empty(hosts)

    def test_a_signal_to_one_node_ends_all_with_a_checkpoint(self):
        whole = self.directory / "whole"
        self.run_train(self.arguments(whole, max_steps=40))
        hosts = self.hosts(2)
        train = self.arguments(self.output, max_steps=40)
        for node in (1, 0):
            job = subprocess.Popen(self.launch(hosts, [1, 1], [[*train, "--resume", "auto"]]), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(job.kill)
            self.wait_for_a_step(job)
            launcher = hosts.processes_named(hosts.names[node], "rp-launch")
            self.assertEqual(len(launcher), 1)
            # SIGUSR1 and not SIGTERM, because mpirun itself ends the others with that.
            subprocess.run(["kill", "-s", "USR1", str(launcher[0])], check=True)
            out, errors = job.communicate(timeout=DEADLINE_S)
            self.assertEqual(job.returncode, 75, out[-2000:] + errors[-2000:])
            self.assertIn("stopped by SIGUSR1 after step", out)
            self.assertNotIn("Open MPI", errors, "a node has ended before the others had what it had sent")
            self.assert_hosts_empty(hosts)
        self.run_nodes(hosts, [1, 1], [*train, "--resume", "auto"])
        self.assertEqual(self.results(self.output), self.results(whole))

    def test_nodes_that_differ_or_cannot_share_a_step_are_refused(self):
        hosts = self.hosts(2)
        few = self.run_nodes(hosts, [1, 1], self.arguments(self.output, rounds_per_step=1), expect=2)
        self.assertIn("--rounds-per-step is 1, but there are 2 nodes, which share the rounds of a step", few.stderr)
        first = self.arguments(self.output)
        for other, code, text in ((self.arguments(self.output, seed=2), 1, 'the nodes differ: settings/seed is "2" on node 1, and "1" on node 0'),
                                  (self.arguments(self.output, model="/no/model"), 64, "there is no such folder")):
            process = self.run_nodes(hosts, [1, 1], first, other, expect=code)
            self.assertIn(text, process.stderr)
        self.assertFalse(self.output.exists(), "an output directory is left")

    def run_refusals(self, hosts: Hosts, options: list[str], mode: str, expect: int) -> subprocess.CompletedProcess:
        words = [str(PROGRAMS / "rp-launch"), "--workers", "1", *options, os.environ["RP_REFUSALS_PROGRAM"], mode]
        process = subprocess.run(hosts.mpirun(words), capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(process.returncode, expect, process.stdout + process.stderr)
        self.assert_hosts_empty(hosts)
        return process

    def test_nodes_that_all_wait_for_each_other_end_and_say_for_what(self):
        hosts = self.hosts(2)
        for mode, wait_of_node_1 in (("ends", "the others to end, as its own program has"), ("asks", "the first node to make the same call")):
            begin = time.monotonic()
            process = self.run_refusals(hosts, ["--wait-timeout", "3", "--node-timeout", "2"], mode, expect=124)
            self.assertLess(time.monotonic() - begin, 30)
            why = re.escape("error: all 2 nodes wait for each other, and have done nothing else for 3 s (--wait-timeout): their programs may "
                            "have made different calls, or a message between them is lost; this node waits for ")
            for wait in ("another node to compute round [0-9]+", wait_of_node_1):
                self.assertEqual(len(re.findall(f"{why}{wait};", process.stderr)), 1, process.stderr)
            self.assertNotIn("worker 0", process.stderr, "no worker is at fault")

    def test_what_nodes_cannot_share_is_refused_and_named(self):
        hosts = self.hosts(2)

        def run(mode: str, expect: int) -> subprocess.CompletedProcess:
            return self.run_refusals(hosts, [], mode, expect)

        outputs = "outputs stay on the node that computes them; call evaluate() or forward_backward() for losses, or use one node"
        masters = "no node has all master weights; give step() a rule, such as rp::AdamW, or use one node"
        lines = run("calls", 0).stdout.splitlines()
        for name, call, why in (("forward", "forward()", outputs), ("forward without gradients", "forward()", outputs),
                                ("forward_packed", "forward_packed()", outputs),
                                ("return_outputs", "forward_backward() with return_outputs", outputs),
                                ("optimizer_parameters", "optimizer_parameters()", masters),
                                ("function", "step() with a function", masters)):
            self.assertEqual(lines.count(f"{name}: a run on 2 nodes: {call} is not possible, because {why}"), 2, lines)
        losses = [line for line in lines if line.startswith("loss ")]
        self.assertEqual(len(losses), 2, "a run goes on after a call that is refused")
        self.assertEqual(losses[0], losses[1])
        self.assertTrue(losses[0].endswith(" of step 1"), losses)
        for mode, text in (("rounds", "rounds_per_step is 1, but the nodes share the rounds of a step; set it to 2 or more"),
                           ("masters", "optimizer_dtype is Double; set it to at::kFloat"),
                           ("buffers", "layer 1 has the buffer 'shift', which the nodes would change differently; use layers without "
                                       "buffers, or one node")):
            self.assertIn(f"a run on 2 nodes: {text}", run(mode, 2).stderr)

    def test_the_launcher_starts_the_nodes_itself_and_passes_a_signal_on(self):
        hosts = self.hosts(2)
        train = self.arguments(self.output, max_steps=100_000, save_every="never")
        job = self.start(hosts, ["--tag-output"], [1, 2], train)
        self.wait_for_a_step(job)
        job.send_signal(signal.SIGTERM)
        out, errors = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 75, out[-2000:] + errors[-2000:])
        self.assertIn("rp-launch: SIGTERM is passed on to all nodes", errors)
        self.assertEqual(len(list(self.output.glob("checkpoint-*/state-2-of-2.safetensors"))), 1)
        self.assert_hosts_empty(hosts)

    def test_a_node_that_stands_still_is_what_the_others_wait_for(self):
        hosts = self.hosts(2)
        train = self.arguments(self.output, max_steps=100_000, save_every="never")
        job = self.start(hosts, ["--tag-output", "--node-timeout", "30"], [1, 1], train)
        self.wait_for_a_step(job)
        stopped = hosts.processes_named("host1", "train:coord")
        subprocess.run(["kill", "-s", "STOP", str(stopped[0])], check=True)
        # The launcher of node 0 prints what its processes do when nothing has gone on for 5 s after an INT.
        launcher = [pid for pid in hosts.processes_named("host0", "rp-launch") if pid != job.pid]
        subprocess.run(["kill", "-s", "INT", str(launcher[0])], check=True)
        errors = ""
        while (line := job.stderr.readline()) and "look at what those do" not in line:
            errors += line
        self.assertRegex(errors + line, "waits [0-9.]+ m?s for other nodes|waits [0-9.]+ m?s for another node")
        subprocess.run(["kill", "-s", "CONT", str(stopped[0])], check=True)
        out, rest = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 130, errors + out[-2000:] + rest[-2000:])
        self.assert_hosts_empty(hosts)

    def test_a_host_that_cannot_run_the_program_is_named_before_anything_starts(self):
        hosts = self.hosts(2)
        hosts.cut("host1")
        job = self.start(hosts, [], [1, 1], self.arguments(self.output))
        _, errors = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 69, errors)
        self.assertIn("rp-launch: host host1 cannot be reached", errors)
        hosts.restore("host1")
        command = hosts.command("host0", [str(PROGRAMS / "rp-launch"), "--hosts", "host0,host1", "no-such-program"])
        process = subprocess.run(command, env=os.environ | hosts.mpi_environment(), capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 127, process.stderr)
        for host in hosts.names:
            self.assertIn(f"rp-launch: host {host} cannot start the run (exit code 127)", process.stderr)
        self.assertFalse(self.output.exists())
        self.assert_hosts_empty(hosts)

    def test_a_signal_while_the_hosts_are_asked_ends_the_run_before_it_starts(self):
        hosts = self.hosts(2)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            job = self.start(hosts, [], [1, 1], self.arguments(self.output))
            while not hosts.processes_named("host0", "mpirun"):
                self.assertIsNone(job.poll())
            job.send_signal(number)
            _, errors = job.communicate(timeout=DEADLINE_S)
            self.assertEqual(job.returncode, 128 + number, errors)
            self.assertFalse(self.output.exists())
            self.assert_hosts_empty(hosts)

    def test_the_death_of_a_process_ends_all_nodes(self):
        hosts = self.hosts(3)
        for name, node in (("mpirun", 0), ("rp-launch", 1), ("train:coord", 2), ("train:coord", 0)):
            output = self.directory / f"{name.replace(':', '-')}-{node}"
            job = subprocess.Popen(self.launch(hosts, [1, 1, 1], [self.arguments(output, max_steps=10_000)]), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.addCleanup(job.kill)
            self.wait_for_a_step(job)
            victims = hosts.processes_named(hosts.names[node], name)
            self.assertEqual(len(victims), 1, f"{name} on node {node}")
            subprocess.run(["kill", "-s", "KILL", str(victims[0])], check=True)
            job.stdout.close()
            self.assert_hosts_empty(hosts, within_s=5)
            self.assertNotEqual(job.wait(timeout=5), 0)

    def test_a_run_goes_on_without_a_node_that_is_cut_off(self):
        whole = self.directory / "whole"
        self.run_train(self.arguments(whole, max_steps=60))
        hosts = self.hosts(3)
        train = [*self.arguments(self.output, max_steps=60, save_every=2), "--resume", "auto"]
        job = self.start(hosts, ["--tag-output", "--node-timeout", "2", "--on-node-failure", "restart"], [1, 1, 1], train)
        self.wait_for_a_step(job)
        hosts.cut("host1")
        out, errors = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 0, out[-3000:] + errors[-3000:])
        self.assertIn("starting the program again on 2 of 3 hosts (restart 1 of 3): host0, host2", errors)
        self.assertEqual(self.results(self.output)[1], self.results(whole)[1])
        self.assert_hosts_empty(hosts)

    def test_a_node_that_is_cut_off_ends_all_if_there_is_none_on_the_host_of_mpirun(self):
        hosts = self.hosts(3)
        for cut, also in (("host1", []), ("host2", [signal.SIGUSR1])):
            train = self.arguments(self.directory / cut, max_steps=100_000, save_every="never")
            job = self.start(hosts, ["--node-timeout", "2"], [1, 1], train, first=1)
            self.wait_for_a_step(job)
            hosts.cut(cut)
            for number in also:  # then mpirun itself does not notice that the host is lost
                job.send_signal(number)
            self.assert_hosts_empty(hosts, within_s=6)  # the timeout, 3 s, and half of the timeout
            _, errors = job.communicate(timeout=DEADLINE_S)
            self.assertEqual(job.returncode, 72, errors)
            self.assertRegex(errors, rf"node [01] \({cut}\) has sent nothing for 2 s")
            hosts.restore(cut)


if __name__ == "__main__":
    unittest.main()
