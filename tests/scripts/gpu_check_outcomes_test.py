#!/usr/bin/env python3
"""What the checks of scripts/gpu-check.sh make of what programs print, how they end them, and what is measured beside us."""

import ctypes
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools" / "gpu_check"))
sys.path.insert(0, str(SOURCE / "tools"))

import checks  # noqa: E402
import host_memory  # noqa: E402
import make_random_model  # noqa: E402
import runs  # noqa: E402
import table  # noqa: E402
import trace_split  # noqa: E402
from bench import Bench, Card, Result, card_of_nvml, shortened, warm_libraries  # noqa: E402
from checks import NotRun, Outcome  # noqa: E402

import device_checks  # noqa: E402
import speed_checks  # noqa: E402
import training_checks  # noqa: E402

SPEC = importlib.util.spec_from_file_location("gpu_check_main", SOURCE / "tools" / "gpu_check" / "__main__.py")
gpu_check = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gpu_check)


class TraceSplitTest(unittest.TestCase):
    def event(self, pid, tid, cat, ts, dur, **args):
        return {"ph": "X", "pid": pid, "tid": tid, "cat": cat, "ts": ts, "dur": dur, "args": args}

    def test_an_upload_counts_where_nothing_computes(self):
        events = [self.event(1, 1, "task", 0, 100, step=3), self.event(1, 1, "compute", 10, 50), self.event(1, 3, "upload", 0, 30),
                  self.event(1, 2, "upload", 55, 15), self.event(1, 4, "download", 65, 10), self.event(0, 3, "update", 70, 20),
                  self.event(2, 3, "upload", 0, 100), self.event(1, 1, "compute", 200, 9, step=9)]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"traceEvents": events}, file)
            file.flush()
            shares = trace_split.split(Path(file.name))
        expected = {"compute": 0.5, "weights": 0.1, "inputs": 0.1, "outputs": 0.05, "updates": 0.15, "rest": 0.1}
        self.assertEqual({name: round(share, 9) for name, share in shares.items()}, expected)

    def test_differences_of_unions(self):
        self.assertEqual(trace_split.without([(0, 10), (20, 30)], [(2, 3), (5, 22), (29, 40)]), [(0, 2), (3, 5), (22, 29)])


class FakeBench:
    """Gives prepared results instead of running anything."""

    left = 100.0
    scale = 1.0
    all_but = Bench.all_but

    def __init__(self, *results: Result):
        self.results = list(results)

    def program(self, name):
        return Path(name)

    def run(self, *_, **__):
        return self.results.pop(0)


class OutcomesTest(unittest.TestCase):
    def sanitized(self, out: str, code: int = 0) -> Outcome:
        return device_checks.sanitized(FakeBench(Result(code, out, "", 1.0)), "memcheck", 9)[0]

    def test_a_sanitizer_that_found_errors_or_gave_no_summary_is_not_met(self):
        passed = "[  PASSED  ] 12 tests.\n"
        self.assertEqual(self.sanitized(passed + "========= ERROR SUMMARY: 0 errors\n").figure, "0 errors, 12 tests passed")
        self.assertTrue(self.sanitized(passed + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n").is_met)
        self.assertFalse(self.sanitized(passed + "========= ERROR SUMMARY: 3 errors\n", 86).is_met)
        with self.assertRaises(RuntimeError):
            self.sanitized(passed)

    def test_kernel_tests_that_fail_are_missed(self):
        skipped = "[  PASSED  ] 0 tests.\n[  SKIPPED ] 12 tests, listed below:"
        for out, code, is_met in (("[  PASSED  ] 12 tests.", 0, True), ("[  PASSED  ] 11 tests.", 1, False), ("", 0, False), (skipped, 0, False)):
            self.assertEqual(device_checks.kernel_tests(FakeBench(Result(code, out, "", 1.0)))[0].is_met, is_met)


    def test_a_row_says_which_tests_failed_or_why_they_were_left_out(self):
        failed = "[  FAILED  ] Formats/Kernels.A/Bf16 (3 ms)\n[  FAILED  ] 1 test, listed below:\n[  FAILED  ] Formats/Kernels.A/Bf16\n"
        self.assertEqual(device_checks.kernel_tests(FakeBench(Result(1, "[  PASSED  ] 11 tests.\n" + failed, "", 1.0)))[0].why,
                         "Formats/Kernels.A/Bf16 failed")
        skipped = "x.h:9: Skipped\nno CUDA device: the driver is old\n\n[  PASSED  ] 0 tests.\n[  SKIPPED ] 12 tests, listed below:"
        self.assertEqual(device_checks.kernel_tests(FakeBench(Result(0, skipped, "", 1.0)))[0].why, "no CUDA device: the driver is old")
        result = Result(0, skipped, "child: no CUDA device: no context\n", 1.0)  # a program whose processes have the GPU
        self.assertEqual(device_checks.signal_tests(FakeBench(result))[0].why, "no CUDA device: no context")

    def test_what_a_program_printed_before_it_failed_counts(self):
        def outcomes(code, err=""):
            bench = FakeBench(Result(code, '{"case": "never_recorded", "driver_version": 13000, "query_before": "not ready"}\n', err, 7.0))
            bench.left = 70
            return device_checks.dead_events(bench)

        for code, err, why, has_failed in ((None, "", "the program did not end within 7 s", False), (1, "broken", "exit code 1: broken", True),
                                           (69, "no CUDA device", "no CUDA device", False)):
            with self.subTest(code=code):
                first, *others = outcomes(code, err)
                self.assertEqual((first.figure, first.is_met), ("query before: not ready", True))
                self.assertEqual({(each.figure, each.why, each.has_failed) for each in others}, {("", why, has_failed)})

    def test_a_figure_that_is_no_number_loses_none_of_the_others(self):
        lines = ['{"what": "up", "ratio": 0.97, "store_gbs": 53.0, "pinned_gbs": 54.6, "store": "shm", "staged_gbs": 20.0}',
                 '{"what": "down", "ratio": null, "store_gbs": null, "pinned_gbs": 54.6, "store": "shm"}']
        outcomes = device_checks.store_bandwidth(FakeBench(Result(0, "\n".join(lines) + "\n", "", 1.0)))
        self.assertEqual((outcomes[0].figure, outcomes[0].is_met), ("0.970 (53.0 of 54.6 GB/s, shm)", True))
        self.assertTrue(outcomes[1].has_failed and outcomes[1].why.startswith("TypeError: "))
        self.assertEqual((outcomes[2].why, outcomes[2].has_failed), ("no line of it", True))
        self.assertEqual((outcomes[4].figure, outcomes[5].why[:23]), ("20.0 GB/s, 0.366 of pinned memory's", "KeyError: 'staged_gbs' "))

    def test_calls_that_were_refused_are_no_errors_of_memory(self):
        refused = "========= Program hit CUDA_ERROR_NOT_SUPPORTED (error 801) due to \"operation not supported\" on CUDA API call to cuMemHostRegister_v2.\n"
        outcome = training_checks.memcheck_outcome([refused, "========= ERROR SUMMARY: 1 error\n"], 0, "")
        self.assertEqual((outcome.figure, outcome.is_met), ("0 errors in 2 processes, exit code 0; calls that gave errors: cuMemHostRegister_v2", True))
        outcome = training_checks.memcheck_outcome(["========= Invalid __global__ read of size 16 bytes\n"], 0, "")
        self.assertEqual((outcome.figure, outcome.is_met), ("1 errors in 1 processes, exit code 0", False))
        self.assertFalse(training_checks.memcheck_outcome([], 0, "").is_met, "nothing was checked")

    def test_a_machine_too_small_for_one_model_measures_the_other(self):
        with unittest.mock.patch.object(runs, "free_host_bytes", lambda: 48 << 30):
            self.assertEqual(speed_checks.workload("1.7b").layers, 28)
        with unittest.mock.patch.object(runs, "free_host_bytes", lambda: 24 << 30):
            with self.assertRaisesRegex(NotRun, "24 GiB are free.* too small for a 8b model"):
                speed_checks.workload("8b")
        with unittest.mock.patch.object(runs, "free_host_bytes", lambda: 120 << 30):
            self.assertEqual(speed_checks.workload("8b").layers, 16)

    def test_the_doctors_figures_are_taken_once(self):
        alone = {"host_to_device_gbs": 50.0, "device_to_host_gbs": 51.0, "both_directions_gbs": 40.0, "copy_latency_us": 9.5, "register_s_per_gib": 0.2,
                 "bf16_tflops": 600.04, "fp16_tflops": 610, "fp16_accumulate_tflops": 620, "tf32_tflops": 300, "memory_gbs": 2800, "products_problem": ""}
        with tempfile.TemporaryDirectory() as name:
            bench = FakeBench(Result(0, json.dumps({"bandwidths": [{"alone": alone, "failure": ""}]}), "", 9.0))
            bench.scratch = Path(name)
            bandwidths, products = speed_checks.doctors_figures(bench)
            self.assertEqual(products.figure, "600.0, 610.0, 620.0, 300.0 TFLOP/s; 2800 GB/s")
            figure = bandwidths.figure
            self.assertEqual(figure, "50.0, 51.0, 40.0 GB/s; 9.5 us a copy; 0.200 s to register a GiB")
            (bench.scratch / "profile.json").write_text("{}")
            self.assertEqual(speed_checks.doctors_figures(bench)[0].figure, figure)
            without = alone | {"products_problem": "no cuBLAS"}
            (bench.scratch / "doctor.json").write_text(json.dumps({"bandwidths": [{"alone": without, "failure": ""}]}))
            self.assertEqual(speed_checks.doctors_figures(bench)[1], Outcome(why="no cuBLAS", has_failed=True))
            (bench.scratch / "doctor.json").write_text(json.dumps({"bandwidths": [{"alone": None, "failure": "it hangs"}]}))
            with self.assertRaisesRegex(RuntimeError, "it hangs"):
                speed_checks.doctors_figures(bench)

    def test_the_longest_sequence_leaves_the_time_that_others_need(self):
        tried = []

        class Clock(FakeBench):
            left = 110.0

        def longest(until: float, longest_that_fits: int, seconds: float = 30.0) -> Outcome:
            tried.clear()
            bench, now = Clock(), [0.0]

            def peak_of(length: int, _: float) -> speed_checks.Peak:
                tried.append(length)
                if bench.left < seconds:
                    raise NotRun("the part's time was over")
                bench.left -= seconds
                now[0] += seconds
                if length > longest_that_fits:
                    raise RuntimeError("out of memory")
                return speed_checks.Peak(f"{length / 5000:.1f} GiB", "24.0 GiB")

            with unittest.mock.patch.object(speed_checks.time, "monotonic", lambda: now[0]):
                return speed_checks.longest_sequence(bench, peak_of, 73000, until, "28 layers")

        outcome = longest(55, 1 << 30)
        self.assertEqual((tried, outcome.figure, outcome.is_met), ([73216], "73216 tokens, peak 14.6 GiB of 24.0 GiB (28 layers)", True))
        outcome = longest(0, 1 << 30)
        self.assertEqual((tried, outcome.is_met), ([73216, 91136], True))
        outcome = longest(0, 80000, 20)
        self.assertEqual((tried, outcome.figure[:5], outcome.is_met), ([73216, 91136], "73216", True), "a longer one that does not fit is no failure")
        outcome = longest(0, 60000)
        self.assertEqual((tried, outcome.is_met), ([73216, 54528], False))
        self.assertIn("out of memory", outcome.why)
        with self.assertRaisesRegex(RuntimeError, "73216: out of memory"):
            longest(0, 0, 20)
        with self.assertRaises(NotRun):
            longest(0, 1 << 30, 120)

    def test_the_peak_of_a_frozen_step_is_what_the_program_prints(self):
        with tempfile.TemporaryDirectory() as name:
            def peak(out: str, code: int | None = 0) -> speed_checks.Peak:
                bench = FakeBench(Result(code, out, "it broke", 3.0))
                bench.scratch = Path(name)
                return speed_checks.frozen_peak(bench, "tiny", 4, 64, 9)

            line = '{"tokens": 64, "most_gpu_bytes": 13958643712, "limit_bytes": 25769803776}\n'
            self.assertEqual(peak(line), speed_checks.Peak("13.0 GiB", "24.0 GiB"))
            for out, code in (("", 69), (line, 69), ("", 0), (line.replace("25769803776", "0"), 0)):
                with self.subTest(out=out, code=code), self.assertRaises(RuntimeError):
                    peak(out, code)
            with self.assertRaisesRegex(NotRun, "no step within 3 s; it broke"):
                peak("", None)

    def test_modes_that_fail_do_not_hide_the_others(self):
        bench = unittest.mock.Mock(card=Card("c", "d", 81559))
        bad = {"events": RuntimeError("train ended\nwith 1"), "rounds": NotRun("no time")}

        def difference(_, name):
            if name in bad:
                raise bad[name]
            return {"async": 2e-5}.get(name, 0.0)

        with unittest.mock.patch.object(training_checks, "mode_difference", difference):
            [outcome] = training_checks.modes_beside_the_cpu(bench)
        self.assertEqual((outcome.figure, outcome.is_met), ("2.00e-05 (async), 9 of 11 modes", False))
        self.assertEqual(outcome.why, "rounds: no time; events: train ended\nwith 1")
        row = gpu_check.result_of(outcome)
        self.assertEqual(row, "missed: rounds: no time; events: train ended with 1")

    def test_a_trace_that_cannot_be_read_leaves_the_figure_beside_it(self):
        self.assertEqual(speed_checks.time_split(Path("/nowhere")).why[:17], "FileNotFoundError")
        self.assertTrue(speed_checks.time_split(Path("/nowhere")).has_failed)

    def test_every_outcome_gives_a_row(self):
        line = checks.Line("what", "bar")
        for outcomes, result in (([Outcome("1", False, "a\n b | c\n")], "missed: a b | c"), ([Outcome(why="no\ntime")], "not run: no time"),
                                 ([Outcome(has_failed=True)], "failed: nobody knows why"), ([], "failed: the check gave none"),
                                 (RuntimeError("of\ntwo lines"), "failed: RuntimeError: of two lines"), (OSError(), "failed: OSError:"),
                                 (NotRun("later"), "not run: later")):
            function = unittest.mock.Mock(**({"side_effect": outcomes} if isinstance(outcomes, Exception) else {"return_value": outcomes}))
            bench = unittest.mock.Mock(card=Card("card", "driver", 1), log=Path("/dev/null"))
            [row] = gpu_check.rows_of(checks.Check("kernels", (line,), function), bench)
            self.assertEqual(row.result, result)
            self.assertEqual([each.result for each in table.read_rows(row.line())], [result.replace("|", "/")])


class BenchTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-gpu-check-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.bench = Bench(Card("c", "d", 1), 60, self.directory, self.directory / "rows.log")

    def test_what_takes_too_long_is_killed_with_what_it_started_and_what_it_said_is_kept(self):
        result = self.bench.run(["bash", "-c", "echo said; sleep 71.5 & sleep 71.5"], 6)
        self.assertEqual((result.code, result.out), (None, "said\n"))
        self.assertEqual([pid for pid in runs.processes_with("71.5") if pid != os.getpid()], [])
        log = (self.directory / "rows.log").read_text()
        self.assertIn("said", log)
        self.assertIn("its time was over", log)
        self.assertEqual(self.bench.processes, set())

    def test_a_part_with_more_time_than_usual_gives_its_checks_more(self):
        self.assertEqual(self.bench.seconds(20), 20)
        self.bench.scale = 2.5
        self.assertEqual(self.bench.seconds(20), 50)
        self.assertLess(self.bench.seconds(30), 60.1)
        self.assertAlmostEqual(self.bench.seconds(self.bench.all_but(20, 5)), 40, delta=2)
        self.assertEqual(self.bench.seconds(self.bench.all_but(55, 10)), 25)

    def test_nothing_is_started_once_the_part_was_told_to_end(self):
        process = self.bench.start(["sleep", "72.5"])
        self.bench.kill_all()
        self.assertEqual(process.returncode, -9)
        with self.assertRaises(NotRun):
            self.bench.run(["true"], 5)

    def test_a_log_keeps_begin_and_end(self):
        self.assertEqual(shortened("short"), "short")
        text = shortened("a" * 40000 + "b" * 40000)
        self.assertLess(len(text), 31000)
        self.assertTrue(text.startswith("aaa") and text.endswith("bbb"))

    def test_libraries_are_read_once(self):
        (self.directory / "libtorch_cuda.so").write_bytes(b"x" * 5000)
        (self.directory / "libtorch_cpu.so").symlink_to("libtorch_cuda.so")
        self.assertRegex(warm_libraries(f"{self.directory}:/nowhere:", 5), r"^libraries: 0\.0 GB read in \d+\.\d s$")

    def test_pages_of_files_are_free_memory_of_a_control_group(self):
        group = self.directory / "sys/fs/cgroup"
        group.mkdir(parents=True)
        (self.directory / "proc").mkdir()
        (self.directory / "proc/meminfo").write_text("MemTotal: 200 kB\nMemAvailable: 100 kB\n")
        self.assertEqual(runs.free_host_bytes(self.directory), 100 << 10)
        (group / "memory.max").write_text("max\n")
        (group / "memory.current").write_text("50000\n")
        self.assertEqual(runs.free_host_bytes(self.directory), 100 << 10)
        (group / "memory.max").write_text("90000\n")
        (group / "memory.stat").write_text("anon 10000\ninactive_file 20000\nactive_file 5000\nshmem 15000\n")
        self.assertEqual(runs.free_host_bytes(self.directory), 90000 - 50000 + 25000)


    def test_a_machine_whose_memory_grows_is_asked_for_it_until_there_is_no_more(self):
        (self.directory / "proc").mkdir()

        def have(total_gib: float) -> None:
            text = f"MemTotal: {int(total_gib * (1 << 20))} kB\nMemAvailable: 100 kB\n"  # so little that nothing is taken
            (self.directory / "next").write_text(text)
            (self.directory / "next").rename(self.directory / "proc/meminfo")

        have(8)
        self.assertEqual(host_memory.ask_for(8 << 30, 9, self.directory), "host memory: 8.0 GiB")
        timers = [threading.Timer(0.3 * i, have, [8 + 4 * i]) for i in (1, 2)]
        for timer in timers:
            timer.start()
        self.assertRegex(host_memory.ask_for(120 << 30, 30, self.directory, patience=1.5),
                         r"^host memory: 8\.0 GiB, after it was asked for more 16\.0 GiB, \d s$")
        for timer in timers:
            timer.join()
        self.assertRegex(host_memory.ask_for(16 << 30, 30, self.directory), r"^host memory: 16\.0 GiB$")
        with self.assertRaises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        self.assertEqual(host_memory.parse_size("120G"), 120 << 30)
        self.assertRaises(ValueError, host_memory.parse_size, "120")

    def test_a_card_without_nvidia_smi_is_found_by_its_library(self):
        self.assertIsNone(card_of_nvml("/nowhere/libnvidia-ml.so.1"))

        def say(text):
            return lambda *arguments: setattr(next(each for each in arguments if isinstance(each, ctypes.Array)), "value", text) or 0

        def memory(_, to):
            to[0] = 81559 << 20
            return 0

        nvml = unittest.mock.Mock(nvmlInit_v2=lambda: 0, nvmlDeviceGetHandleByIndex_v2=lambda *_: 0, nvmlDeviceGetName=say(b"NVIDIA X"),
                                  nvmlSystemGetDriverVersion=say(b"580.1"), nvmlDeviceGetMemoryInfo=memory)
        with unittest.mock.patch.object(ctypes, "CDLL", lambda _: nvml):
            self.assertEqual(card_of_nvml(), Card("NVIDIA X", "580.1", 81559))
            nvml.nvmlInit_v2 = lambda: 9
            self.assertIsNone(card_of_nvml())


class RivalsTest(unittest.TestCase):
    """What is measured beside us, as far as it goes without a GPU."""

    def run_rival(self, program: str, *words: str) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run([sys.executable, SOURCE / "benchmarks" / program, "--shape", "tiny", *words], env=environment, capture_output=True,
                              text=True, timeout=120)

    @unittest.skipIf(importlib.util.find_spec("roundpipe"), "it is installed")
    def test_a_package_that_is_not_there_is_not_run(self):
        process = self.run_rival("python_roundpipe.py")
        self.assertEqual((process.returncode, process.stderr), (69, "python_roundpipe.py: roundpipe is not installed\n"))

    @unittest.skipUnless(importlib.util.find_spec("torch"), "needs torch")
    def test_their_model_has_as_many_weights_as_ours(self):
        process = self.run_rival("fsdp2_offload.py")
        self.assertEqual(process.returncode, 69, process.stderr)
        self.assertIn("no CUDA device", process.stderr)
        sys.path.insert(0, str(SOURCE / "benchmarks"))
        import torch_llama

        model = torch_llama.build("tiny", 4)
        self.assertEqual(sum(each.numel() for each in model.parameters()), make_random_model.num_parameters(make_random_model.config("tiny", 4)))
        self.assertAlmostEqual(float(model[1].q.weight.detach().float().std()), 0.02, delta=0.002)
        ids, labels = torch_llama.batch("tiny", 2, 16)
        loss = float(torch_llama.loss_of(model(ids), labels).detach()) / ids.numel()
        self.assertLess(abs(loss - math.log(make_random_model.SHAPES["tiny"]["vocab_size"])), 0.5, "the loss of a guess")


if __name__ == "__main__":
    unittest.main()
