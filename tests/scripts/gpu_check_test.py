#!/usr/bin/env python3
"""scripts/gpu-check.sh without a GPU: what it says, what rows it takes, and, where the programs are built, its checks of
trainings over workers on the `cpu` device, as if that were a GPU."""

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools" / "gpu_check"))
sys.path.insert(0, str(SOURCE / "tools"))

import make_random_model  # noqa: E402
import runs  # noqa: E402
import trace_split  # noqa: E402
from bench import Bench, Card, Result, shortened, warm_libraries  # noqa: E402
from checks import PARTS, NotRun, Outcome, load_all  # noqa: E402
from table import BadRow, Row, merged, read_rows  # noqa: E402

import device_checks  # noqa: E402
import speed_checks  # noqa: E402
import training_checks  # noqa: E402

# rp-launch with as many workers on the CPU as there are GPUs in the list.
ON_THE_CPU = """#!/usr/bin/env python3
import os, sys
words, at = sys.argv[1:], 0
out = []
while at < len(words):
    if words[at] == "--gpus":
        out += ["--workers", str(words[at + 1].count("0"))]
    elif words[at] in ("--gpu-memory", "--signals"):
        pass
    else:
        out.append(words[at])
        at -= 1
    at += 2
os.execv(os.environ["RP_REAL_PROGRAMS"] + "/rp-launch", ["rp-launch", *out])
"""
# cmake that writes down what it is set to, and cannot build.
CMAKE = """#!/usr/bin/env python3
import sys
from pathlib import Path
if sys.argv[1] == "--build":
    sys.exit(3)
cache = Path(sys.argv[sys.argv.index("-B") + 1], "CMakeCache.txt")
for word in sys.argv:
    if word.startswith("-DRP_CUDA_ARCHITECTURES="):
        cache.write_text(word[2:].replace("=", ":STRING=") + "\\n")
with open("configured", "a") as log:
    log.write(cache.read_text())
"""
NVIDIA_SMI = "#!/bin/sh\necho 'NVIDIA Stand-in, 999.1, 81559'\n"


def row(what="a", figure="1", result="met", **changes) -> Row:
    return Row(**({"what": what, "figure": figure, "bar": "2", "result": result, "driver": "580", "card": "C", "date": "2026-01-01"} | changes))


class WithoutGpuTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-gpu-check-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.table = self.directory / "rows"

    def run_script(self, *words: str, **changes: str) -> subprocess.CompletedProcess:
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "RP_PYTHON": sys.executable} | changes
        return subprocess.run([SOURCE / "scripts/gpu-check.sh", "--table", self.table, *words], env=environment, capture_output=True,
                              text=True, timeout=60)

    def test_every_part_says_that_there_is_no_device_and_what_to_do(self):
        for part in PARTS:
            with self.subTest(part=part):
                process = self.run_script(part)
                self.assertEqual(process.returncode, 69, process.stderr)
                self.assertIn(f"{part}: no CUDA device: CUDA_VISIBLE_DEVICES shows none; unset it", process.stderr)
                self.assertFalse(self.table.exists(), "a row without a GPU")

    @unittest.skipIf(shutil.which("nvidia-smi"), "this machine has a driver")
    def test_a_machine_without_a_driver_is_told_to_have_one(self):
        process = self.run_script("bits", CUDA_VISIBLE_DEVICES="0")
        self.assertEqual(process.returncode, 69, process.stderr)
        self.assertRegex(process.stderr, "no CUDA device: .*nvidia-smi is not there; install the driver")

    def test_a_wrong_part_is_refused_with_the_list(self):
        process = self.run_script("kernel")
        self.assertEqual(process.returncode, 2)
        self.assertIn("no part 'kernel'", process.stderr)
        self.assertIn(" ".join(PARTS), process.stderr)
        self.assertEqual(self.run_script("--seconds", "481", "bits").returncode, 2)

    def test_wheels_that_came_along_are_there_for_python(self):
        root, scratch = self.directory / "bundle", self.directory / "scratch"
        for folder in ("tools", "scripts"):
            shutil.copytree(SOURCE / folder, root / folder)
        (root / "wheels").mkdir()
        with zipfile.ZipFile(root / "wheels/carried-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("carried.py", "")
        python = self.directory / "python"
        python.write_text(f'#!/bin/sh\necho "$PYTHONPATH" >{self.directory}/path\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "RP_PYTHON": str(python), "RP_GPU_SCRATCH": str(scratch), "PYTHONPATH": "/mine"}
        process = subprocess.run([root / "scripts/gpu-check.sh", "kernels"], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(process.returncode, 69, process.stderr)
        self.assertTrue((scratch / "site/carried.py").exists())
        self.assertEqual((self.directory / "path").read_text(), f"{scratch}/site:/mine\n")

    def test_parts_take_at_most_8_minutes_and_20_together(self):
        self.assertLessEqual(max(PARTS.values()), 480)
        self.assertLessEqual(sum(PARTS.values()), 1200)
        self.assertEqual({each.part for each in load_all()}, set(PARTS), "a part without a check")
        table = re.findall(r"^\| `(\w+)` \| (\d+) \|", (SOURCE / "docs/gpu-check.md").read_text(), re.MULTILINE)
        self.assertEqual({part: int(seconds) for part, seconds in table}, PARTS, "what the page says")


class BundleTest(unittest.TestCase):
    def test_what_it_is_not_asked_for_is_refused(self):
        for words in (["--architecture", "90"], ["--architectures", "sm_90 x"], ["--architectures"], ["all"]):
            with self.subTest(words=words):
                process = subprocess.run([SOURCE / "scripts/gpu-bundle.sh", *words], capture_output=True, text=True, timeout=60)
                self.assertEqual(process.returncode, 2, process.stderr)

    def test_a_folder_that_was_built_before_keeps_its_settings(self):
        with tempfile.TemporaryDirectory(prefix="rp-gpu-bundle-") as name:
            root = Path(name)
            for path, text in (("scripts/gpu-bundle.sh", (SOURCE / "scripts/gpu-bundle.sh").read_text()), (".venv/bin/python", "#!/bin/sh\n"),
                               ("bin/cmake", CMAKE), ("build/release/CMakeCache.txt", "RP_CUDA_ARCHITECTURES:STRING=80;90\n")):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
                (root / path).chmod(0o755)
            process = subprocess.run([root / "scripts/gpu-bundle.sh", "--architectures", "89", "--build", "build/release"],
                                     env=os.environ | {"PATH": f"{root}/bin:{os.environ['PATH']}"}, capture_output=True, text=True, timeout=60)
            self.assertEqual(process.returncode, 3, "cmake --build fails")
            self.assertEqual((root / "configured").read_text(), "RP_CUDA_ARCHITECTURES:STRING=89-real\nRP_CUDA_ARCHITECTURES:STRING=80;90\n")
            self.assertEqual([file.name for file in (root / "build/release").iterdir()], ["CMakeCache.txt"])

    def test_all_that_it_takes_along_is_there(self):
        text = (SOURCE / "scripts/gpu-bundle.sh").read_text()
        files = re.search(r"^files=\((.*?)\)", text, re.MULTILINE | re.DOTALL).group(1).split()
        self.assertEqual([file for file in files if not (SOURCE / file).exists()], [])
        needed = {f"tests/system/{test.split()[0]}" for test in training_checks.TESTS} | {"tests/system/launched.py"}
        self.assertLessEqual(needed, set(files), "a test of the suite stays behind")
        programs = re.search(r"^programs=\((.*?)\)", text, re.MULTILINE | re.DOTALL).group(1).split()
        named = {name for file in (SOURCE / "tools/gpu_check").glob("*.py") for name in re.findall(r'program\("([^"]+)"\)', file.read_text())}
        self.assertLessEqual(named, {Path(each).name for each in programs}, "a program of a check stays behind")


class RowsTest(unittest.TestCase):
    def test_no_row_is_met_without_a_figure_a_driver_and_a_card(self):
        for changes in ({"figure": ""}, {"driver": ""}, {"card": ""}, {"date": ""}, {"result": "done"}, {"result": "not run"}):
            with self.subTest(**changes), self.assertRaises(BadRow):
                row(**changes)
        row(result="not run: no time", figure="", driver="", card="", date="")

    def test_a_row_is_read_back_as_it_was_written(self):
        for each in (row(), row(result="not run: needs a GPU", figure="", driver="", card="", date="")):
            self.assertEqual(read_rows(each.line()), [each])

    def test_new_rows_replace_old_ones_and_leave_the_others(self):
        rows = merged([row("a"), row("b")], [row("b", "7"), row("c", "", "not run: no time"), row("a", "", "not run: no time")])
        self.assertEqual(rows, [row("a"), row("b", "7"), row("c", "", "not run: no time")])

    def test_the_page_has_every_line_and_no_other(self):
        lines = [line.what for each in load_all() for line in each.lines]
        self.assertEqual(len(lines), len(set(lines)))
        page = [each.what for each in read_rows((SOURCE / "docs/gpu-status.md").read_text())]
        self.assertEqual(sorted(page), sorted(lines))

    def test_merging_into_a_page(self):
        what = load_all()[0].lines[0].what
        with tempfile.TemporaryDirectory() as name:
            page, rows = Path(name) / "page.md", Path(name) / "rows"
            tool = [sys.executable, SOURCE / "tools/gpu_status.py", "--page", page]
            rows.write_text(row(what, "12 passed").line() + "\n")
            subprocess.run([*tool, rows], check=True, timeout=60)
            self.assertIn(row(what, "12 passed"), read_rows(page.read_text()))
            subprocess.run(tool, check=True, timeout=60)
            self.assertIn(row(what, "12 passed"), read_rows(page.read_text()), "rows of an earlier day stay")
            for bad in (row("nobody asked").line(), f"| {what} |  | 0 | met | 1 | C | d |"):
                rows.write_text(bad + "\n")
                self.assertEqual(subprocess.run([*tool, rows], capture_output=True, timeout=60).returncode, 64)


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

    def test_calls_that_were_refused_are_no_errors_of_memory(self):
        refused = "========= Program hit CUDA_ERROR_NOT_SUPPORTED (error 801) due to \"operation not supported\" on CUDA API call to cuMemHostRegister_v2.\n"
        outcome = training_checks.memcheck_outcome([refused, "========= ERROR SUMMARY: 1 error\n"], 0, "")
        self.assertEqual((outcome.figure, outcome.is_met), ("0 errors in 2 processes, exit code 0; calls that gave errors: cuMemHostRegister_v2", True))
        outcome = training_checks.memcheck_outcome(["========= Invalid __global__ read of size 16 bytes\n"], 0, "")
        self.assertEqual((outcome.figure, outcome.is_met), ("1 errors in 1 processes, exit code 0", False))
        self.assertFalse(training_checks.memcheck_outcome([], 0, "").is_met, "nothing was checked")

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

        def run(bench, name, work, launch, seconds, **_):
            tried.append(work.sequence_length)
            bench.left -= 30
            now[0] += 30
            if work.sequence_length > fits:
                raise RuntimeError("out of memory")

        now = [0.0]
        with unittest.mock.patch.object(speed_checks, "speed_run", run), unittest.mock.patch.object(speed_checks.time, "monotonic", lambda: now[0]):
            fits = 1 << 30
            outcome = speed_checks.longest_sequence(Clock(), "1.7b", 28, 73000, until=55)
            self.assertEqual((tried, outcome.figure, outcome.is_met), ([73216], "73216 tokens (28 layers)", True))
            tried.clear()
            outcome = speed_checks.longest_sequence(Clock(), "1.7b", 28, 73000, until=0)
            self.assertEqual((tried, outcome.is_met), ([73216, 91136], True))
            tried.clear()
            fits = 60000
            outcome = speed_checks.longest_sequence(Clock(), "1.7b", 28, 73000, until=0)
            self.assertEqual((tried, outcome.is_met), ([73216, 54528], False))
            self.assertIn("out of memory", outcome.why)


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


@unittest.skipUnless(os.environ.get("RP_PROGRAMS"), "the programs are not built")
class OnTheCpuTest(unittest.TestCase):
    """A bundle of links whose rp-launch has its workers on the CPU."""

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="rp-gpu-check-")
        cls.addClassCleanup(directory.cleanup)
        cls.root = Path(directory.name)
        programs = Path(os.environ["RP_PROGRAMS"])
        for folder in ("tools", "scripts", "tests/system"):
            shutil.copytree(SOURCE / folder, cls.root / folder)
        (cls.root / "bin").mkdir()
        (cls.root / "data").mkdir()
        (cls.root / "data/tiny").symlink_to(os.environ["RP_TINY_MODEL"])
        (cls.root / "bin/train").symlink_to(programs / "train")
        (cls.root / "bin/bits_program").symlink_to(programs.parent / "tests/bits_program")
        for path, text in (("bin/rp-launch", ON_THE_CPU), ("driver/nvidia-smi", NVIDIA_SMI)):
            (cls.root / path).parent.mkdir(exist_ok=True)
            (cls.root / path).write_text(text)
            (cls.root / path).chmod(0o755)
        os.environ["RP_REAL_PROGRAMS"] = str(programs)

    def rows(self, part: str, seconds: int = 100) -> dict[str, Row]:
        table = self.root / f"{part}.rows"
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        environment |= {"PATH": f"{self.root}/driver:{os.environ['PATH']}", "RP_PYTHON": sys.executable}
        process = subprocess.run([self.root / "scripts/gpu-check.sh", "--table", table, "--seconds", str(seconds), part], env=environment,
                                 capture_output=True, text=True, timeout=200)
        self.assertIn(process.returncode, (0, 1), process.stderr)
        self.assertEqual([line for line in process.stdout.splitlines() if not line.startswith("| ")], [], "more than the rows")
        self.assertIn("[exit code ", table.with_name(table.name + ".log").read_text())
        rows = {each.what: each for each in read_rows(table.read_text())}
        lines = [line for each in load_all() if each.part == part for line in each.lines]
        self.assertEqual([*rows], [line.what for line in lines], "a row for each line")
        self.assertEqual({(each.driver, each.card) for each in rows.values()}, {("999.1", "NVIDIA Stand-in")})
        return rows

    def test_bits(self):
        rows = self.rows("bits")
        self.assertEqual({each.result for each in rows.values()}, {"met"}, rows)
        sums = re.findall(r"[0-9a-f]{12}", next(iter(rows.values())).figure.split(";")[0])
        self.assertEqual((len(sums), len(set(sums))), (3, 1))

    def test_the_suite_as_far_as_its_time_goes(self):
        system, modes = self.rows("suite", 75).values()
        self.assertRegex(system.figure, r"^[1-9]\d* of \d+ passed, \d+ not reached in time$")
        self.assertIn(system.result, ("met", "missed"), "none failed")
        self.assertEqual(modes.result, "met", modes)
        self.assertTrue(modes.figure.startswith("0.00e+00"), "both are the CPU")

    def test_a_killed_worker(self):
        rows = self.rows("death")
        for what, each in rows.items():
            if what.startswith("worker 2"):
                self.assertEqual(each.result, "met", each)
                self.assertRegex(each.figure, "exit code 137 after .* names worker 2")
            else:
                self.assertIn("not run: gpu_dead_events is not built", each.result)

    def test_tokens_per_second_of_a_random_model_with_its_trace(self):
        bench = Bench(Card("c", "d", 1), 120, self.root / "scratch")
        bench.program = lambda name: self.root / "bin" / name
        bench.scratch.mkdir()
        model = runs.random_model(bench, "tiny", 4)
        data = runs.random_data(bench, "tiny", 32, 8)
        trace = self.root / "trace.json"
        run = runs.train_until(bench, "speed", ["--gpus", "0,", "--trace", trace], model, data, 6, 60, kills_coordinator=True, batch_size=8,
                               num_microbatches=4, sequence_length=32)
        self.assertEqual(run.result.code, 0, run.result.err)
        self.assertGreater(run.step_seconds(), 0)
        shares = trace_split.split(trace)
        self.assertAlmostEqual(sum(shares.values()), 1)
        self.assertGreater(shares["compute"], 0)
        self.assertEqual(runs.processes_with(run.output), [])
        vocabulary = make_random_model.SHAPES["tiny"]["vocab_size"]
        self.assertLess(abs(run.losses()[0] - math.log(vocabulary)), 0.5, "the loss of a guess")


if __name__ == "__main__":
    unittest.main()
