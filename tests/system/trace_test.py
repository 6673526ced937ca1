"""Runs with --trace: the contents of the file, and that it is written however the run ends."""

import collections
import json
import os
import resource
import signal
import subprocess
import unittest
from pathlib import Path

from launched import ABORT, DEADLINE_S, PROGRAMS, LaunchedTest, bits, metrics, settings

ENDINGS = os.environ["RP_ENDINGS_PROGRAM"]
CATEGORIES = {"task", "compute", "upload", "download", "wait", "update", "commit", "accept"}
LAYERS = 4  # of endings_program


class Trace:
    def __init__(self, file: Path):
        trace = json.loads(file.read_text())
        self.about = trace["otherData"]
        self.events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        self.flows = [e for e in trace["traceEvents"] if e["ph"] in "sf"]
        self.names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
        self.tracks = collections.defaultdict(list)
        for event in self.events:
            self.tracks[event["pid"], event["tid"]].append(event)

    def of(self, category: str) -> list[dict]:
        return [e for e in self.events if e["cat"] == category]

    def enclosing(self, flow: dict) -> list[dict]:
        """Returns the events that enclose the end of an arrow, the innermost last."""
        return [e for e in self.tracks[flow["pid"], flow["tid"]] if e["ts"] <= flow["ts"] + 1e-4
                and (flow["ts"] < e["ts"] + e["dur"] - 1e-4 or (e["dur"] == 0 and abs(e["ts"] - flow["ts"]) < 1e-4))]


class TraceTest(LaunchedTest):
    def setUp(self):
        super().setUp()
        self.file = self.directory / "trace.json"

    def run_program(self, mode: str, expect: int, *launch: str, alone=False, **options):
        command = [ENDINGS, mode] if alone else [PROGRAMS / "rp-launch", "--workers", "2", *launch, ENDINGS, mode]
        process = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, **options)
        self.assertEqual(process.returncode, expect, process.stdout[-2000:] + process.stderr[-2000:])
        self.assertEqual([p.name for p in self.directory.iterdir() if p.name.startswith(".")], [], "a journal is left")
        return process

    def check(self, trace: Trace, workers: int = 2):
        """Checks the properties that every trace has."""
        self.assertEqual(trace.about["workers"], workers)
        self.assertEqual(list(trace.names.values()), ["coordinator"] + [f"worker {w}" for w in range(workers)])
        self.assertEqual(trace.about["dropped"], 0)
        self.assertEqual({e["cat"] for e in trace.events} - CATEGORIES, set())
        self.assertEqual(min(e["ts"] for e in trace.events), 0)
        for track, events in trace.tracks.items():
            ends, last = [], 0
            for event in events:
                self.assertGreaterEqual(event["ts"], last - 1e-6, "in the order of their begins")
                last = event["ts"]
                while ends and ends[-1] <= event["ts"] + 1e-6:
                    ends.pop()
                ends.append(event["ts"] + event["dur"])
                self.assertTrue(len(ends) == 1 or ends[-1] <= ends[-2] + 1e-3, f"track {track} does not nest at {event}")
        for event in trace.of("wait"):
            self.assertGreaterEqual(event["dur"], 10)
        self.check_flows(trace)

    def check_flows(self, trace: Trace):
        begins = {f["id"]: f for f in trace.flows if f["ph"] == "s"}
        ends = {f["id"]: f for f in trace.flows if f["ph"] == "f"}
        self.assertEqual(begins.keys(), ends.keys())
        self.assertEqual(2 * len(begins), len(trace.flows))
        for number, begin in begins.items():
            maker, reader = trace.enclosing(begin)[-1], trace.enclosing(ends[number])[-1]
            self.assertIn((maker["cat"], reader["cat"]), {("download", "upload"), ("update", "upload")})
            self.assertGreaterEqual(reader["ts"], maker["ts"] + maker["dur"] - 1e-3, f"{maker} {reader}")
            if maker["cat"] == "download":
                self.assertEqual(maker["args"]["microbatch"], reader["args"]["microbatch"])
                self.assertEqual(maker["args"]["bytes"], reader["args"]["bytes"])
                self.assertLess(maker["args"]["slot"], reader["args"]["slot"])

    def check_rounds(self, trace: Trace, rounds: int, layers: int, microbatches: int):
        """Checks that every task and microbatch occurs once, every layer in both directions in every round, and a
        slot's events in one worker."""
        tasks = {e["args"]["slot"]: e for e in trace.of("task")}
        self.assertEqual(len(tasks), len(trace.of("task")))
        self.assertEqual(sorted(tasks), list(range(len(tasks))))
        self.assertEqual(sorted(e["args"]["slot"] for e in trace.of("commit")), list(range(len(tasks))))
        computed = collections.Counter()
        for event in trace.of("compute"):
            arguments, task = event["args"], tasks[event["args"]["slot"]]
            computed[arguments["slot"], arguments["phase"], arguments["microbatch"]] += 1
            self.assertEqual(event["pid"], task["pid"])
            self.assertTrue(task["ts"] <= event["ts"] + 1e-3 and event["ts"] + event["dur"] <= task["ts"] + task["dur"] + 1e-3)
            for key in ("round", "step", "pipeline", "first_layer", "end_layer"):
                self.assertEqual(arguments[key], task["args"][key], key)
        expected = collections.Counter()
        covered = collections.Counter()
        for slot, task in tasks.items():
            arguments = task["args"]
            phases = {"forward": ["forward"], "fused": ["fused"], "backward": ["recompute", "backward"]}[arguments["phase"]]
            for phase in phases:
                expected.update((slot, phase, m) for m in range(microbatches))
            for direction in {"forward": ["up"], "fused": ["up", "down"], "backward": ["down"]}[arguments["phase"]]:
                covered.update((arguments["round"], direction, layer) for layer in range(arguments["first_layer"], arguments["end_layer"]))
        self.assertEqual(computed, expected)
        self.assertEqual(covered, collections.Counter((r, d, l) for r in range(rounds) for d in ("up", "down") for l in range(layers)))

    def test_a_run_has_all_that_its_processes_did(self):
        self.run_program("success", 0, "--trace", str(self.file))
        trace = Trace(self.file)
        self.check(trace)
        self.check_rounds(trace, rounds=50, layers=LAYERS, microbatches=2)
        self.assertEqual(trace.about["program"], "endings_program")
        self.assertIs(trace.about["is_complete"], True)
        updates = collections.Counter((e["args"]["step"], e["args"]["first_layer"]) for e in trace.of("update"))
        self.assertEqual(updates, collections.Counter((step, layer) for step in range(1, 51) for layer in range(LAYERS)))
        # Each worker uploads the weights of each layer of its tasks. For updated weights, an arrow
        # leads from the update.
        of_weights = [e for e in trace.of("upload") if e["args"]["what"] == "weights"]
        self.assertEqual(len(of_weights), sum(e["args"]["end_layer"] - e["args"]["first_layer"] for e in trace.of("task")))
        from_updates = [f for f in trace.flows if f["ph"] == "s" and f["name"] == "weights"]
        first_version = sum(e["args"]["end_layer"] - e["args"]["first_layer"] for e in trace.of("task") if e["args"]["step"] == 1)
        self.assertEqual(len(from_updates), len(of_weights) - first_version)
        # An arrow leads to every uploaded block that the coordinator did not make.
        made = [e for e in trace.of("upload") if e["args"]["what"] in ("activation", "gradient") and e["args"]["index"] > 0]
        self.assertEqual(len([f for f in trace.flows if f["ph"] == "s" and f["name"] == "data"]), len(made))

    def test_training_has_the_same_bits_and_every_kind_of_pass(self):
        changes = {"async": True, "rounds_per_step": 2, "max_grad_norm": "0.5"}
        plain, traced = self.directory / "plain", self.directory / "traced"
        self.run_train(settings(plain, **changes))
        self.run_train(settings(traced, **changes), ("--workers", "2", "--trace", str(self.file)))
        self.assertEqual(bits(plain), bits(traced))
        trace = Trace(self.file)
        self.check(trace)
        layers = max(e["args"]["end_layer"] for e in trace.of("task"))
        self.check_rounds(trace, rounds=8, layers=layers, microbatches=3)
        self.assertEqual(len(metrics(traced)), 4)
        passes = {e["name"].split(" ")[0] for e in trace.of("update")}
        self.assertEqual(passes, {"update", "add", "norm"})

    def test_a_failing_worker_leaves_a_trace_of_what_was_before(self):
        process = self.run_program("worker-killed", 137, "--trace", str(self.file), *ABORT)
        self.assertIn("rp-launch:", process.stderr)
        trace = Trace(self.file)
        self.check(trace)
        self.assertGreater(len(trace.of("task")), 4)

    def test_a_run_that_is_interrupted_leaves_a_trace(self):
        for number, expect in ((signal.SIGINT, 130), (signal.SIGKILL, 137)):
            with self.subTest(signal=number):
                process = subprocess.Popen([PROGRAMS / "rp-launch", "--workers", "2", "--trace", self.file, ENDINGS, "until-signal"],
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                coordinator = int(process.stdout.readline().split()[1])
                if number == signal.SIGINT:
                    process.send_signal(number)
                else:
                    os.kill(coordinator, number)
                process.communicate(timeout=DEADLINE_S)
                self.assertEqual(process.returncode, expect)
                trace = Trace(self.file)
                self.check(trace)
                self.assertGreaterEqual(max(e["args"]["step"] for e in trace.of("task")), 5)

    def test_without_rp_launch_the_program_writes_it(self):
        for mode, expect in (("success", 0), ("throw-in-main", 1)):
            with self.subTest(mode=mode):
                process = self.run_program(mode, expect, alone=True, env=dict(os.environ, RP_TRACE=str(self.file)))
                self.assertEqual(process.stderr.count("\n"), 0 if expect == 0 else 1, process.stderr)
                trace = Trace(self.file)
                self.assertEqual(trace.about["workers"], 1)
                if expect == 0:
                    self.check(trace, workers=1)
                    self.check_rounds(trace, rounds=50, layers=LAYERS, microbatches=2)

    def test_a_file_that_cannot_be_written_is_an_error_before_the_run(self):
        for file in (self.directory, self.directory / "missing" / "trace.json", Path("/dev/full")):
            with self.subTest(file=file):
                process = self.run_program("success", 74, "--trace", str(file))
                self.assertEqual(process.stderr.count(str(file)), 1, process.stderr)
                self.assertNotIn("running", process.stdout)

    def test_a_disk_that_gets_full_ends_the_trace_and_not_the_run(self):
        def limit_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        process = self.run_program("success", 0, "--trace", str(self.file), preexec_fn=limit_files)
        self.assertIn("done", process.stdout)
        self.assertEqual(process.stderr.count("warning"), 1, process.stderr)
        trace = Trace(self.file)
        self.assertIs(trace.about["is_complete"], False)
        self.assertGreater(len(trace.events), 100)


if __name__ == "__main__":
    unittest.main()
