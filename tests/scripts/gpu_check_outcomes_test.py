#!/usr/bin/env python3
"""The checks of scripts/gpu-check.sh: how they interpret the output of programs, how they end programs, and the
measurements of other products."""

import ctypes
import importlib.util
import json
import math
import os
import re
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
from bench import Bench, Card, Result, card_of_nvml, nvml_figures, shortened, warm_libraries  # noqa: E402
from checks import NotRun, Outcome  # noqa: E402

import copy_checks  # noqa: E402
import device_checks  # noqa: E402
import lifetime_checks  # noqa: E402
import machine_checks  # noqa: E402
import sanitizer_checks  # noqa: E402
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
    """Returns prepared results instead of running anything."""

    left = 100.0
    scale = 1.0
    log = None
    all_but = Bench.all_but
    note_table = Bench.note_table

    def __init__(self, *results: Result):
        self.results = list(results)

    def program(self, name):
        return Path(name)

    def run(self, *_, **__):
        return self.results.pop(0)


class OutcomesTest(unittest.TestCase):
    def sanitized(self, out: str, code: int = 0) -> Outcome:
        return sanitizer_checks.sanitized(FakeBench(Result(code, out, "", 1.0)), "memcheck", 9)[0]

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
        result = Result(0, skipped, "child: no CUDA device: no context\n", 1.0)  # of a program whose child processes use the GPU
        self.assertEqual(device_checks.signal_tests(FakeBench(result))[0].why, "no CUDA device: no context")

    def test_nccl_is_not_run_where_it_is_not_installed(self):
        skipped = "[  PASSED  ] 0 tests.\n[  SKIPPED ] 3 tests, listed below:"
        with self.assertRaisesRegex(NotRun, "needs NCCL 2.18.0: libnccl.so.2 cannot be loaded"):
            device_checks.nccl_tests(FakeBench(Result(0, skipped, "child: --reduce nccl needs NCCL 2.18.0: libnccl.so.2 cannot be loaded (x)\n", 1.0)))
        self.assertEqual(device_checks.nccl_tests(FakeBench(Result(0, "[  PASSED  ] 3 tests.", "", 1.0)))[0], Outcome("3 passed, exit code 0", True))
        self.assertFalse(device_checks.nccl_tests(FakeBench(Result(0, skipped, "", 1.0)))[0].is_met)

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
        outcomes = copy_checks.store_bandwidth(FakeBench(Result(0, "\n".join(lines) + "\n", "", 1.0)))
        self.assertEqual((outcomes[0].figure, outcomes[0].is_met), ("0.970 (53.0 of 54.6 GB/s, shm)", True))
        self.assertTrue(outcomes[1].has_failed and outcomes[1].why.startswith("TypeError: "))
        self.assertEqual((outcomes[2].why, outcomes[2].has_failed), ("no line of it", True))
        self.assertEqual((outcomes[4].figure, outcomes[5].why[:23]), ("20.0 GB/s, 0.366 of pinned memory's", "KeyError: 'staged_gbs' "))

    def test_calls_that_were_refused_are_no_errors_of_memory(self):
        refused = "========= Program hit CUDA_ERROR_NOT_SUPPORTED (error 801) due to \"operation not supported\" on CUDA API call to cuMemHostRegister_v2.\n"
        outcome = sanitizer_checks.memcheck_outcome([refused, "========= ERROR SUMMARY: 1 error\n"], 0, "")
        self.assertEqual((outcome.figure, outcome.is_met), ("0 errors in 2 processes, exit code 0; calls that gave errors: cuMemHostRegister_v2", True))
        outcome = sanitizer_checks.memcheck_outcome(["========= Invalid __global__ read of size 16 bytes\n"], 0, "")
        self.assertEqual((outcome.figure, outcome.is_met), ("1 errors in 1 processes, exit code 0", False))
        self.assertFalse(sanitizer_checks.memcheck_outcome([], 0, "").is_met, "nothing was checked")

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

            line = '{"tokens": 64, "peak_gpu_bytes": 13958643712, "limit_bytes": 25769803776}\n'
            self.assertEqual(peak(line), speed_checks.Peak("13.0 GiB", "24.0 GiB"))
            for out, code in (("", 69), (line, 69), ("", 0), (line.replace("25769803776", "0"), 0)):
                with self.subTest(out=out, code=code), self.assertRaises(RuntimeError):
                    peak(out, code)
            with self.assertRaisesRegex(NotRun, "no step within 3 s; it broke"):
                peak("", None)

    def test_runs_are_made_one_at_a_time_where_the_hosts_memory_is_small(self):
        bench = FakeBench()
        bench.card = Card("c", "d", 81559)
        for free_gib, most in ((16, 1), (31, 1), (32, 4), (500, 4)):
            with unittest.mock.patch.object(training_checks, "free_host_bytes", lambda free_gib=free_gib: free_gib << 30):
                self.assertEqual(training_checks.jobs(bench), most, free_gib)

    def test_memcheck_of_a_training_leaves_time_for_the_kernel_tests(self):
        bench = unittest.mock.Mock(scratch=Path(tempfile.mkdtemp(prefix="rp-gpu-check-")), scale=2.0, **{"run.return_value": Result(0, "", "", 1.0)})
        bench.tiny_model.return_value = Path("tiny")
        sanitizer_checks.memcheck_of_a_training(bench)
        bench.all_but.assert_called_once_with(140.0, 60)

    def test_modes_that_fail_do_not_hide_the_others(self):
        bench = unittest.mock.Mock(card=Card("c", "d", 81559))
        bad = {"events": RuntimeError("train ended\nwith 1"), "rounds": NotRun("no time")}

        def difference(_, name):
            if name in bad:
                raise bad[name]
            return {"async": 2e-5}.get(name, 0.0)

        with unittest.mock.patch.object(training_checks, "mode_difference", difference):
            [outcome] = training_checks.modes_beside_the_cpu(bench)
        self.assertEqual((outcome.figure, outcome.is_met), ("2.00e-05 (async), 10 of 12 modes", False))
        self.assertEqual(outcome.why, "rounds: no time; events: train ended\nwith 1")
        row = gpu_check.result_of(outcome)
        self.assertEqual(row, "missed: rounds: no time; events: train ended with 1")

    def test_a_trace_that_cannot_be_read_leaves_the_other_figure(self):
        self.assertEqual(speed_checks.time_split(Path("/nowhere")).why[:17], "FileNotFoundError")
        self.assertTrue(speed_checks.time_split(Path("/nowhere")).has_failed)

    def test_every_outcome_gives_a_row(self):
        line = checks.Line("what", "bar")
        for outcomes, result in (([Outcome("1", False, "a\n b | c\n")], "missed: a b | c"), ([Outcome(why="no\ntime")], "not run: no time"),
                                 ([Outcome(has_failed=True)], "failed: for an unknown reason"), ([], "failed: the check gave none"),
                                 (RuntimeError("of\ntwo lines"), "failed: RuntimeError: of two lines"), (OSError(), "failed: OSError:"),
                                 (NotRun("later"), "not run: later")):
            function = unittest.mock.Mock(**({"side_effect": outcomes} if isinstance(outcomes, Exception) else {"return_value": outcomes}))
            bench = unittest.mock.Mock(card=Card("card", "driver", 1), log=Path("/dev/null"))
            [row] = gpu_check.rows_of(checks.Check("kernels", (line,), function), bench)
            self.assertEqual(row.result, result)
            self.assertEqual([each.result for each in table.read_rows(row.line())], [result.replace("|", "/")])


def lines(*objects: dict) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


DOCTOR = {"missing": "", "driver": "580.1", "cuda": "13.0", "plugin": "x", "unmeasured": "",
          "gpus": [{"uuid": "GPU-other", "pci_address": "x"},
                   {"uuid": "GPU-a", "pci_address": "00000000:0A:00.0", "compute_capability": "9.0", "pcie_now": {"generation": 1, "lanes": 16},
                    "pcie_at_most": {"generation": 5, "lanes": 16}}],
          "bandwidths": [{"uuid": "GPU-a", "failure": "", "alone": {"copy_engines": 3, "word_operations": True, "read_only_registration": False,
                                                                    "unified_addressing": True}}],
          "advice": [{"about": "kernel", "text": "new", "problem": False}, {"about": "GPU 1", "text": "loose", "problem": True}]}


class MachineOutcomesTest(unittest.TestCase):
    def attributes(self, report: dict, code: int | None = 0) -> list[Outcome]:
        return machine_checks.attributes(FakeBench(Result(code, json.dumps(report), "broken", 2.0)))

    def test_attributes_are_those_of_the_gpu_that_was_measured(self):
        first, wrong = self.attributes(DOCTOR)
        self.assertTrue(first.is_met)
        self.assertTrue(first.figure.startswith("sm 9.0; 64-bit stream memory operations yes, read-only registration no, unified addressing yes; "
                                                "3 copy engines; BAR ?; PCIe 1.0 x16 (at most 5.0 x16); driver 580.1, CUDA 13.0; kernel "), first.figure)
        self.assertEqual(wrong.figure, "GPU 1: loose")
        without = json.loads(json.dumps(DOCTOR))
        without["bandwidths"][0]["alone"]["word_operations"] = False
        without["advice"] = []
        first, wrong = self.attributes(without)
        self.assertEqual((first.is_met, wrong.figure), (False, "nothing"))

    def test_a_doctor_that_fails_or_measures_nothing_says_so(self):
        unmeasured = DOCTOR | {"bandwidths": [{"uuid": "GPU-a", "failure": "it hangs", "alone": None}]}
        first, wrong = self.attributes(unmeasured)
        self.assertEqual((first.figure, first.why, first.has_failed, wrong.figure), ("", "rp-probe: it hangs", True, "GPU 1: loose"))
        first, _ = self.attributes(DOCTOR | {"bandwidths": [], "unmeasured": "rp-probe is not there"})
        self.assertEqual(first.why, "rp-probe: rp-probe is not there")
        with self.assertRaises(NotRun):
            self.attributes(DOCTOR, None)
        with self.assertRaisesRegex(NotRun, "^broken$"):
            self.attributes(DOCTOR, 69)
        with self.assertRaisesRegex(RuntimeError, "ended with 70: broken"):
            self.attributes(DOCTOR, 70)

    def test_the_largest_window_of_a_card_is_its_bar(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "sys/bus/pci/devices/0000:0a:00.0")
            folder.mkdir(parents=True)
            (folder / "resource").write_text("0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200\n"
                                             "0x0000010000000000 0x00000107ffffffff 0x000000000014220c\n"
                                             "0x0000000000000000 0x0000000000000000 0x0000000000000000\n")
            self.assertEqual(machine_checks.bar_bytes("00000000:0A:00.0", Path(name)), 32 << 30)
            self.assertEqual(machine_checks.bar_bytes("00000000:0B:00.0", Path(name)), 0)

    def first_launches(self, code: int | None, *objects: dict) -> list[Outcome]:
        return machine_checks.first_launches(FakeBench(Result(code, lines(*objects), "no word", 3.0)))

    def test_launches_that_another_stream_holds_up_are_counted_and_missed_when_they_were_made_before(self):
        def launch(what: str, is_beside: bool, first_ms: float, was_held_up: bool = False, again: bool = False) -> dict:
            return {"launch": what, "is_beside": is_beside, "first_ms": first_ms, "again_ms": 0.02, "was_held_up": was_held_up,
                    "was_held_up_again": again}

        alone = [launch("rms_norm", False, 40.0), launch("cuBLAS handle", False, 90.0)]
        first, beside, again = self.first_launches(0, *alone, launch("rms_norm", True, 41.0), launch("cuBLAS handle", True, 1500.0, True))
        self.assertEqual((first.figure, first.is_met), ("2 launches, 130 ms, the longest 90.0 ms (cuBLAS handle); again at most 0.02 ms", True))
        self.assertEqual(beside.figure, "2 launches, 1541 ms, the longest 1500.0 ms (cuBLAS handle); again at most 0.02 ms; held up: 1")
        self.assertEqual((again.figure, again.is_met), ("2 launches, held up: none", True))
        *_, again = self.first_launches(0, *alone, launch("rms_norm", True, 1500.0, True, again=True))
        self.assertEqual((again.figure, again.is_met), ("1 launches, held up: rms_norm", False))
        first, *others = self.first_launches(69, *alone)
        self.assertEqual((first.is_met, first.why), (False, "no word"))
        for other in others:
            self.assertEqual((other.figure, other.why, other.has_failed), ("", "no word", False))
        first, *_ = self.first_launches(None)
        self.assertEqual((first.figure, first.why), ("", "the program did not end within 3 s"))

    def test_host_functions(self):
        line = {"what": "host_functions", "median_us": 8.04, "p99_us": 20, "calls_per_s_on_one": 90000.4, "streams": 10, "calls_per_s_on_several": 120000}
        [outcome] = device_checks.host_functions(FakeBench(Result(0, lines(line), "", 1.0)))
        self.assertEqual(outcome.figure, "median 8.0 us, p99 20.0 us; 90000 a second on one stream, 120000 on 10")

    def test_kernels_have_what_was_measured_of_them(self):
        def speed(kernel: str, tokens: int) -> dict:
            return {"kernel": kernel, "tokens": tokens, "us": 12.34, "gbs": 1500.4}

        printed = [speed("rms_norm", tokens) for tokens in device_checks.KERNEL_TOKENS] + [speed("rotate", 2048)]
        outcomes = dict(zip(device_checks.KERNELS, device_checks.kernel_speeds(FakeBench(Result(69, lines(*printed), "out of memory", 1.0)))))
        self.assertEqual(outcomes["rms_norm"].figure, "1500 (12.3 us), 1500 (12.3 us), 1500 (12.3 us)")
        self.assertEqual(outcomes["rotate"].figure, "1500 (12.3 us)", "the GPU's memory was too small for more")
        self.assertEqual((outcomes["glu"].figure, outcomes["glu"].why), ("", "out of memory"))
        table = (SOURCE / "kernels/gpu_kernels.h").read_text().split("struct GpuKernels {")[1].split("};")[0]
        declared = [name for name in re.findall(r"\(\*(\w+)\)\(", table) if name != "current_stream"]
        members = list(dict.fromkeys(re.sub("^expand_weights_.*", "expand_weights", kernel) for kernel in device_checks.KERNELS))
        self.assertEqual(members, declared, "a kernel without a row")


class CopyOutcomesTest(unittest.TestCase):
    def test_registration_misses_where_a_piece_is_given_up(self):
        def line(processes: int, given_up: int) -> dict:
            calls = {"launch_ms": 0.5, "copy_ms": 0.25, "mmap_ms": 90.0}
            return {"processes": processes, "s_per_gib": 0.1234, "failed_attempts": 3, "given_up": given_up, "idle": calls | {"mmap_ms": 0.01},
                    "busy": calls}

        outcomes = copy_checks.registration(FakeBench(Result(None, lines(line(1, 0), line(2, 1)), "", 9.0)))
        self.assertEqual([(each.figure, each.is_met) for each in outcomes[:2]],
                         [("0.123 s a GiB; 3 attempts failed, 0 pieces were given up", True), ("0.123 s a GiB; 3 attempts failed, 1 pieces were given up", False)])
        self.assertEqual(outcomes[4].figure, "launch 0.50 ms (before 0.50), copy 0.25 ms (before 0.25), mmap 90.00 ms (before 0.01)")
        self.assertEqual({each.why for each in (*outcomes[2:4], *outcomes[6:])}, {"the program did not end within 9 s"})

    def test_a_grid_says_its_best_and_the_cheapest_that_is_as_good(self):
        def point(direction: str, mib: int, under_way: int, is_traced: bool, gbs: float, is_cut: bool = True) -> dict:
            return {"what": "bulk", "direction": direction, "is_cut": is_cut, "mib": mib, "under_way": under_way, "is_traced": is_traced, "gbs": gbs}

        sizes = [(mib, under_way) for mib in (2, 4, 8, 16) for under_way in (2, 3, 4, 6)]
        grid = [point("up", *size, False, 50.0 if size == (16, 6) else 49.8 if size == (4, 3) else 30.0 + size[0] / 10) for size in sizes]
        delay = {"what": "delay", "traffic": "idle", "input_us": 300.4, "longest_input_us": 400, "page_us": 9.6, "longest_page_us": 20}
        printed = lines(delay, point("up", 256, 2, False, 50.5, False), *grid, point("down", 256, 2, False, 50.5, False), point("down", 2, 2, False, 1.0))
        outcomes = copy_checks.bulk_copies(FakeBench(Result(1, printed, "broken", 1.0)))
        self.assertEqual(outcomes[0].figure, "16 MiB: median 300 us, at most 400 us; 4 KiB: median 10 us, at most 20 us")
        self.assertTrue(outcomes[1].has_failed and outcomes[1].why == "exit code 1: broken")
        self.assertEqual(outcomes[3].figure, "50.0 GB/s with 16 MiB x 6, 0.990 of uncut; 49.8 with 4 MiB x 3; 30.4 with 4 MiB x 2")
        self.assertEqual((outcomes[4].figure, outcomes[4].why), ("", "1 of 16 sizes; exit code 1: broken"))
        self.assertEqual(outcomes[6].why, "0 of 16 sizes; exit code 1: broken", "none with a trace")
        self.assertEqual(len(outcomes), 9)

    def test_figures_of_which_a_row_has_no_room_are_in_the_log(self):
        with tempfile.TemporaryDirectory() as name:
            bench = Bench(Card("c", "d", 1), 9, Path(name), Path(name) / "log")
            bench.note_table(("mib", "gbs"), [{"mib": 16, "gbs": 50.04321}, {"mib": 2, "gbs": 9.0}])
            self.assertEqual((Path(name) / "log").read_text(), "mib  gbs\n16   50.04\n2    9\n\n")


# A run of three steps that writes its model and leaves a process behind for a moment.
TRAIN = """#!/usr/bin/env python3
import json, os, subprocess, sys, time
words = sys.argv[1:]
output = words[words.index("--output") + 1]
os.makedirs(output)
for step in range(STEPS):
    time.sleep(0.05)
    with open(output + "/metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps({"step": step + 1, "loss": 1.0, "seconds": 0.05EXTRA}) + "\\n")
time.sleep(0.2)
if STEPS == 3:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)", output])
    print("trained 3 steps in 0.2 s; the model is in x", flush=True)
sys.exit(0 if STEPS == 3 else 1)
"""


class LifetimeTest(unittest.TestCase):
    def lifetime(self, name: str, steps: int = 3, extra: str = "", free=(1000, 400, 990)) -> lifetime_checks.Lifetime:
        root = Path(name)
        bench = Bench(Card("c", "d", 1), 60, root, root / "rows.log")
        program = root / "train"
        program.write_text(TRAIN.replace("STEPS", str(steps)).replace("EXTRA", extra))
        program.chmod(0o755)
        output = root / "run"
        values = list(free)
        life = lifetime_checks.observed(bench, [str(program), "--output", str(output)], output, 30,
                                        lambda: values.pop(0) if len(values) > 1 else values[0])
        self.assertEqual(runs.processes_with(output), [])
        return life

    def test_a_run_is_watched_from_its_start_until_its_memory_is_free_again(self):
        with tempfile.TemporaryDirectory() as name:
            life = self.lifetime(name, extra=', "staged_bytes": 3145728')
            self.assertLess(life.first_step_s, life.run.result.seconds)
            self.assertEqual(life.free_mib, 400)
            self.assertGreater(life.exit_s, 0.2, "what it left behind counts")
            self.assertGreaterEqual(life.free_again_s, life.exit_s)
            first, free, staged, ends = lifetime_checks.outcomes_of(life, 1100, "tiny")
            self.assertRegex(first.figure, r"^\d\.\d s \(tiny\)$")
            self.assertEqual((free.figure, staged.figure), ("400 of 1100 MiB (tiny)", "3 MiB, 3 MiB, 3 MiB"))
            self.assertRegex(ends.figure, r"^processes gone after \d\.\d s, memory free again after \d\.\d s$")
            self.assertTrue(ends.is_met)

    def test_a_run_that_ends_early_leaves_what_was_seen(self):
        with tempfile.TemporaryDirectory() as name:
            first, free, staged, ends = lifetime_checks.outcomes_of(self.lifetime(name, steps=1), 1100, "tiny")
            self.assertTrue(first.figure)
            self.assertEqual(staged.why, "train does not say how many bytes were staged")
            for outcome in (free, ends):
                self.assertTrue(outcome.has_failed and outcome.why.startswith("the run ended with 1 after"), outcome)

    def test_memory_that_does_not_come_back_is_missed(self):
        life = lifetime_checks.Lifetime(runs.Run(Result(0, "", "", 9.0), Path("/nowhere")), 1.0, 300, 2.0, None)
        ends = lifetime_checks.outcomes_of(life, 1100, "tiny")[3]
        self.assertEqual((ends.figure, ends.is_met), ("processes gone after 2.0 s, memory free again not in time", False))

    def test_the_warm_up_is_compared_with_a_run_without_one(self):
        def life(said: str, code: int = 0, first_step_s: float | None = 4.0):
            return lifetime_checks.Lifetime(runs.Run(Result(code, "", said, 9.0), Path("/nowhere")), first_step_s, 300, 2.0, 2.0)
        told = life("step 1/3  loss 1\nwarm-up: 1.26 s, before step 1, for each kind of layer once\n")
        self.assertEqual(lifetime_checks.warm_up_outcome(told, life("", first_step_s=3.94)).figure,
                         "1.3 s; without it the first step ends after 3.9 s")
        for outcome, why in ((lifetime_checks.warm_up_outcome(life("step 1/3\n"), told), "the run says nothing of a warm-up"),
                             (lifetime_checks.warm_up_outcome(told, life("out of memory", 69, None)), "without it: out of memory")):
            self.assertTrue(outcome.has_failed)
            self.assertEqual(outcome.why, why)

    def test_the_margin_is_that_of_the_workers(self):
        header = (SOURCE / "cuda/cuda_device.h").read_text()
        self.assertIn("kMarginBytes = std::uint64_t{1} << 30;", header)
        self.assertIn("return kMarginBytes + options.host_bytes / 4096 * 8 + (options.exchanges_gradients ? kNcclBytes : 0);", header)
        self.assertEqual(lifetime_checks.margin_mib(100 << 30), 1024 + 200)


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

    def test_nothing_is_started_once_the_part_must_end(self):
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
            text = f"MemTotal: {int(total_gib * (1 << 20))} kB\nMemAvailable: 100 kB\n"  # so little that nothing is allocated
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
            to[0], to[1] = 81559 << 20, 700 << 20
            return 0

        nvml = unittest.mock.Mock(nvmlInit_v2=lambda: 0, nvmlDeviceGetHandleByIndex_v2=lambda *_: 0, nvmlDeviceGetName=say(b"NVIDIA X"),
                                  nvmlSystemGetDriverVersion=say(b"580.1"), nvmlDeviceGetMemoryInfo=memory)
        with unittest.mock.patch.object(ctypes, "CDLL", lambda _: nvml):
            self.assertEqual(card_of_nvml(), Card("NVIDIA X", "580.1", 81559))
            self.assertEqual(nvml_figures()[1], 700)
            nvml.nvmlInit_v2 = lambda: 9
            self.assertIsNone(card_of_nvml())


class RivalsTest(unittest.TestCase):
    """The measurements of other products, up to the point where they need a GPU."""

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
