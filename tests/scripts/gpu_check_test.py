#!/usr/bin/env python3
"""scripts/gpu-check.sh without a GPU: its output, the rows that it accepts, and, if the programs are built, its checks
of trainings with workers on the `cpu` device in place of a GPU."""

import ast
import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools" / "gpu_check"))
sys.path.insert(0, str(SOURCE / "tools"))

import make_random_model  # noqa: E402
import runs  # noqa: E402
import trace_split  # noqa: E402
from all_checks import load_all  # noqa: E402
from bench import Bench, Card  # noqa: E402
from parts import FAMILY_CASES, PARTS, SYSTEM_TESTS, TINY_MODEL, needs  # noqa: E402
from table import BadRow, Row, merged, read_rows  # noqa: E402

import replay_checks  # noqa: E402
import speed_checks  # noqa: E402
import training_checks  # noqa: E402

# Replaces rp-launch: runs it with as many workers on the CPU as there are GPUs in the list.
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
# Replaces cmake: records its settings, and fails to build.
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
NVIDIA_SMI = "#!/bin/sh\ncase $1 in *memory.free*) echo 80000 ;; *) echo 'NVIDIA Stand-in, 999.1, 81559' ;; esac\n"


def row(what="a", figure="1", result="met", **changes) -> Row:
    return Row(**({"what": what, "figure": figure, "bar": "2", "result": result, "driver": "580", "card": "C", "date": "2026-01-01"} | changes))


def copy_scripts(root: Path) -> None:
    """Copies the folders that are part of every bundle."""
    for folder in ("tools", "scripts"):
        shutil.copytree(SOURCE / folder, root / folder)
    (root / "tests/parity").mkdir(parents=True)
    shutil.copy(SOURCE / "tests/parity/families.py", root / "tests/parity")


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
    def test_a_machine_without_a_driver_is_reported(self):
        process = self.run_script("bits", CUDA_VISIBLE_DEVICES="0")
        self.assertEqual(process.returncode, 69, process.stderr)
        self.assertRegex(process.stderr, "no CUDA device: .*nvidia-smi is not there; install the driver")

    def test_a_wrong_part_is_refused_with_the_list(self):
        process = self.run_script("kernel")
        self.assertEqual(process.returncode, 2)
        self.assertIn("no part 'kernel'", process.stderr)
        self.assertIn(" ".join(PARTS), process.stderr)
        self.assertEqual(self.run_script("--seconds", "481", "bits").returncode, 2)
        process = self.run_script("bits", RP_GPU_HOST_MEMORY="lots")
        self.assertEqual(process.returncode, 2)
        self.assertIn("RP_GPU_HOST_MEMORY is 'lots', but it is a size such as 120G", process.stderr)

    def test_wheels_that_came_along_are_there_for_python(self):
        root, scratch = self.directory / "bundle", self.directory / "scratch"
        copy_scripts(root)
        (root / "wheels").mkdir()
        (root / "lib").mkdir()
        (root / "lib/torch-version").write_text("1.0.0+cu130\n")
        with zipfile.ZipFile(root / "wheels/carried-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("carried.py", "")
        python = self.directory / "python"
        python.write_text(f'#!/bin/sh\necho "$PYTHONPATH" >{self.directory}/path\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "RP_PYTHON": str(python), "RP_GPU_SCRATCH": str(scratch), "PYTHONPATH": "/mine"}
        process = subprocess.run([root / "scripts/gpu-check.sh", "kernels"], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(process.returncode, 69, process.stderr)
        self.assertTrue((scratch / "site/carried.py").exists())
        self.assertRegex(process.stderr, r"gpu-check\.sh: built with torch 1\.0\.0\+cu130, but torch here is .+: programs may not start")
        self.assertEqual((self.directory / "path").read_text(), f"{scratch}/site:/mine\n")

    def test_parts_take_at_most_8_minutes_and_the_first_ones_20_together(self):
        self.assertLessEqual(max(part.seconds for part in PARTS.values()), 480)
        telling = sum(part.seconds for part in PARTS.values() if part.is_telling)
        self.assertTrue(1000 <= telling <= 1200, telling)
        self.assertEqual({each.part for each in load_all()}, set(PARTS), "a part without a check")
        table = re.findall(r"^\| `(\w+)` \| (\d+) \| (yes|) ?\|", (SOURCE / "docs/gpu-check.md").read_text(), re.MULTILINE)
        self.assertEqual(table, [(name, str(part.seconds), "yes" if part.is_telling else "") for name, part in PARTS.items()], "what the page says")

    def test_what_others_rest_on_comes_first_and_speed_last(self):
        first = ["attributes", "launches", "signals", "kernels", "bits"]
        self.assertEqual(list(PARTS)[:len(first)], first)
        of_sanitizer = [line.what for each in load_all() if each.part == "sanitizer" for line in each.lines]
        self.assertEqual(of_sanitizer[0], "compute-sanitizer memcheck over a short training run", "before the long kernel tests")

    def parts_run(self, root: Path) -> list[str]:
        """Returns the parts that gpu-check.sh of this tree runs if no part is named. None has a GPU, but each prints
        its name."""
        script = root / "scripts/gpu-check.sh"
        script.write_text((SOURCE / "scripts/gpu-check.sh").read_text().replace("if ((code == 69)); then exit 69; fi", ""))
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "RP_PYTHON": sys.executable}
        process = subprocess.run(["bash", script, "--table", self.table], env=environment, capture_output=True, text=True, timeout=120)
        return re.findall(r"^== (\w+) ", process.stderr, re.MULTILINE)

    def test_without_a_name_the_telling_parts_are_run_or_those_of_a_bundle(self):
        root = self.directory / "tree"
        copy_scripts(root)
        self.assertEqual(self.parts_run(root), [name for name, part in PARTS.items() if part.is_telling])
        (root / "parts").write_text("bits kernels\n")
        self.assertEqual(self.parts_run(root), ["bits", "kernels"])


class ImportsTest(unittest.TestCase):
    FOLDER = SOURCE / "tools" / "gpu_check"

    def imports(self) -> dict[str, set[str]]:
        """Returns, for each module, the modules of this folder that it imports, at any place in it."""
        modules = {file.stem for file in self.FOLDER.glob("*.py")}
        found = {}
        for file in self.FOLDER.glob("*.py"):
            names = set()
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names.add(node.module)
            found[file.stem] = names & modules
        return found

    def test_imports_have_no_circle(self):
        left = self.imports()
        while left:
            free = [module for module, needed in left.items() if not needed & set(left)]
            self.assertTrue(free, f"a circle among {sorted(left)}")
            left = {module: needed for module, needed in left.items() if module not in free}

    def test_each_module_can_be_the_first_to_be_imported_and_the_order_of_checks_is_the_same(self):
        orders = set()
        for file in sorted(self.FOLDER.glob("[a-z]*.py")):
            code = f"import {file.stem}, all_checks; print([line.what for each in all_checks.load_all() for line in each.lines])"
            process = subprocess.run([sys.executable, "-c", code], cwd=self.FOLDER, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
                                     capture_output=True, text=True, timeout=60)
            self.assertEqual(process.returncode, 0, process.stderr)
            orders.add(process.stdout)
        self.assertEqual(len(orders), 1)


MADE = {"tiny_model": TINY_MODEL, "family_cases": FAMILY_CASES}  # files of a bundle, by the name under which checks request them


def called_from(names: set[str]) -> tuple[set[str], set[str]]:
    """Returns the programs that these functions of the checks request, directly or through functions that they call,
    and the entries of MADE that they request."""
    bodies: dict[str, list[ast.AST]] = {}
    for file in ImportsTest.FOLDER.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and file.stem != "bench":
                bodies.setdefault(node.name, []).append(node)
    seen, programs, made = set(), set(), set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        for node in (node for body in bodies.get(name, []) for statement in body.body for node in ast.walk(statement)):
            if isinstance(node, ast.Name):
                names = names | ({node.id} & set(bodies))
            if isinstance(node, ast.Attribute) and node.attr in MADE:
                made.add(MADE[node.attr])
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "program":
                programs |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return programs, made


class BundleTest(unittest.TestCase):
    def test_what_it_is_not_asked_for_is_refused(self):
        for words in (["--architecture", "90"], ["--architectures", "sm_90 x"], ["--architectures"], ["--wheels", "/nowhere"], ["all"], ["--parts"], ["--parts", ""]):
            with self.subTest(words=words):
                process = subprocess.run([SOURCE / "scripts/gpu-bundle.sh", *words], capture_output=True, text=True, timeout=60)
                self.assertEqual(process.returncode, 2, process.stderr)

    def test_a_folder_that_was_built_before_keeps_its_settings(self):
        with tempfile.TemporaryDirectory(prefix="rp-gpu-bundle-") as name:
            root = Path(name)
            for path, text in (("scripts/gpu-bundle.sh", (SOURCE / "scripts/gpu-bundle.sh").read_text()),
                               ("tools/gpu_check/parts.py", (SOURCE / "tools/gpu_check/parts.py").read_text()), (".venv/bin/python", "#!/bin/sh\n"),
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
        files = re.search(r"^files=\((.*?)\)", text, re.MULTILINE | re.DOTALL).group(1).split() + needs("files", list(PARTS))
        self.assertEqual([file for file in files if file not in MADE.values() and not (SOURCE / file).exists()], [])
        needed = {f"tests/system/{test.split()[0]}" for test in training_checks.TESTS} | {"tests/system/launched.py"}
        self.assertEqual(needed, set(SYSTEM_TESTS), "a test of the suite stays behind")
        self.assertLessEqual(set(SYSTEM_TESTS), set(PARTS["suite"].files))

    def test_each_part_takes_along_what_its_checks_ask_for_and_nothing_else(self):
        for name, part in PARTS.items():
            with self.subTest(part=name):
                functions = {each.function.__name__ for each in load_all() if each.part == name}
                programs, made = called_from(functions)
                # rp-launch starts rp-probe for its doctor.
                self.assertEqual(programs, set(part.programs) - {"rp-probe"})
                self.assertEqual(made, set(MADE.values()) & set(part.files))
                rivals = any(file.startswith("benchmarks/") for file in part.files)
                self.assertEqual(rivals, name in ("throughput", "large"))

    def test_programs_and_files_of_some_parts_are_listed(self):
        def listed(*words: str) -> subprocess.CompletedProcess:
            return subprocess.run([sys.executable, SOURCE / "tools/gpu_check/parts.py", *words], capture_output=True, text=True, timeout=60)

        self.assertEqual(listed("programs", "bits", "kernels").stdout.split(),
                         ["rp-launch", "train", "cuda_kernels_test", "torch_on_gpu_test", "gpu_kernel_speed"])
        self.assertEqual(listed("files", "kernels").stdout.split(), [])
        self.assertEqual(listed("programs").stdout.split(), needs("programs", list(PARTS)))
        self.assertEqual(listed("programs", "kernel").returncode, 2)

    def test_a_bundle_for_some_parts_has_their_programs_and_says_which_parts(self):
        """Uses shell scripts as programs, from a build that only records what it is to build."""
        with tempfile.TemporaryDirectory(prefix="rp-gpu-bundle-") as name:
            root = Path(name)
            copy_scripts(root)
            scripts = {".venv/bin/python": "#!/bin/sh\necho 2.11.0\n", "bin/cmake": "#!/bin/sh\necho \"$@\" >>targets\n",
                       "bin/readelf": "#!/bin/sh\n", "bin/strip": "#!/bin/sh\n", "bin/ldd": "#!/bin/sh\n", "bin/nvcc": "#!/bin/sh\n"}
            made = [f"build/gpu/{'tests' if program.endswith('_test') else 'bin'}/{program}" for program in needs("programs", list(PARTS))]
            for path, text in scripts.items() | {(file, "#!/bin/sh\n") for file in made}:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
                (root / path).chmod(0o755)
            process = subprocess.run([root / "scripts/gpu-bundle.sh", "--parts", "signals kernels"], capture_output=True, text=True, timeout=60,
                                     env=os.environ | {"PATH": f"{root}/bin:{os.environ['PATH']}"})
            self.assertEqual(process.returncode, 0, process.stderr)
            bundle = root / "build/gpu-bundle"
            self.assertEqual({file.name for file in (bundle / "bin").iterdir()}, set(needs("programs", ["signals", "kernels"])))
            self.assertEqual((bundle / "parts").read_text(), "signals kernels\n")
            self.assertFalse((bundle / "benchmarks").exists())
            self.assertEqual([file.name for file in (bundle / "tests").rglob("*.py")], ["families.py"], "which names the rows of the part `families`")
            self.assertEqual(list((bundle / "data").iterdir()), [])
            self.assertIn(f"--target {' '.join(needs('programs', ['signals', 'kernels']))}\n", (root / "targets").read_text())
            process = subprocess.run([root / "scripts/gpu-bundle.sh", "--parts", "kernel"], capture_output=True, text=True, timeout=60,
                                     env=os.environ | {"PATH": f"{root}/bin:{os.environ['PATH']}"})
            self.assertEqual(process.returncode, 2, process.stderr)


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


@unittest.skipUnless(os.environ.get("RP_PROGRAMS"), "the programs are not built")
class OnTheCpuTest(unittest.TestCase):
    """Tests with a bundle of links whose rp-launch runs its workers on the CPU."""

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="rp-gpu-check-")
        cls.addClassCleanup(directory.cleanup)
        cls.root = Path(directory.name)
        programs = Path(os.environ["RP_PROGRAMS"])
        copy_scripts(cls.root)
        shutil.copytree(SOURCE / "tests/system", cls.root / "tests/system")
        (cls.root / "bin").mkdir()
        (cls.root / "data").mkdir()
        (cls.root / "data/tiny").symlink_to(os.environ["RP_TINY_MODEL"])
        for name in ("train", "frozen_step"):
            (cls.root / "bin" / name).symlink_to(programs / name)
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

    def test_the_suite_ends_when_its_time_is_used_up(self):
        system, modes = self.rows("suite", 75).values()
        self.assertRegex(system.figure, r"^[1-9]\d* of \d+ passed, \d+ not reached in time$")
        self.assertIn(system.result, ("met", "missed: none failed, but time was over"))
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

    def bench(self) -> Bench:
        bench = Bench(Card("c", "d", 1), 120, self.root / "scratch")
        bench.program = lambda name: self.root / "bin" / name
        bench.scratch.mkdir(exist_ok=True)
        return bench

    def test_a_run_whose_workers_are_killed_is_compared_with_one_without_harm(self):
        bench, case = self.bench(), replay_checks.CASES[0]
        alone = replay_checks.run_alone(bench, case, 150)
        found = replay_checks.outcome_of_harm(bench, case, alone)
        self.assertTrue(found.is_met, found)
        self.assertRegex(found.figure, r"^SHA-256 (\w+), \1; 3 of 3 harmed, 3 reported; until a replacement works: median \d+\.\d s, at most \d+\.\d s$")
        other = replay_checks.outcome_of_harm(bench, dataclasses.replace(case, roles=(), settings={"learning_rate": "2e-3"}), alone)
        self.assertEqual((other.is_met, other.why), (False, "the losses differ"))
        self.assertTrue(replay_checks.library_that_loses_contexts(bench).exists())

    def test_a_step_with_frozen_matrices_has_the_loss_of_a_guess_and_no_peak_without_a_gpu(self):
        bench = self.bench()
        with self.assertRaisesRegex(RuntimeError, "frozen_step does not know what it took of a GPU's memory"):
            speed_checks.frozen_peak(bench, "tiny", 4, 96, 60)
        words = [bench.program("rp-launch"), "--gpus", "0,0", bench.program("frozen_step"), "--model", runs.empty_model(bench, "tiny", 4),
                 "--sequence-length", "96", "--steps", "3"]
        line = json.loads(bench.run(words, 60).out)
        self.assertEqual((line["tokens"], line["steps"], line["layers"]), (96, 3, 6))
        self.assertAlmostEqual(line["loss"], math.log(make_random_model.SHAPES["tiny"]["vocab_size"]), delta=1e-3)
        self.assertLess(line["host_bytes_a_parameter"], 3, "2, and what fills up weight groups of a small model")
        self.assertEqual(bench.run(words[:5], 60).code, 2, "without its options")

    def test_a_run_of_some_steps_is_ended_when_it_has_said_at_its_end_what_is_asked_for(self):
        bench = self.bench()
        data = runs.random_data(bench, "tiny", 32, 8)
        run = runs.train_until(bench, "says", ["--gpus", "0,"], runs.empty_model(bench, "tiny", 4), data, 2, 60,
                               says=r"host memory: planned (\S+ \S+), measured", batch_size=8, num_microbatches=4, sequence_length=32)
        self.assertEqual((run.result.code, len(run.metrics())), (0, 2), run.result.err)
        self.assertIn("host memory: planned", run.result.err)
        self.assertAlmostEqual(run.losses()[0], math.log(make_random_model.SHAPES["tiny"]["vocab_size"]), delta=1e-3, msg="zeros")
        self.assertEqual(runs.processes_with(run.output), [])
        with self.assertRaisesRegex(RuntimeError, "train does not say what it took of a GPU's memory"):
            speed_checks.trained_peak(bench, "tiny", 4, 256, 60)

    def test_a_model_of_zeros_takes_no_room(self):
        directory = runs.empty_model(self.bench(), "1.7b", 2)
        sizes = [(file.stat().st_size, file.stat().st_blocks * 512) for file in directory.glob("*.safetensors")]
        self.assertGreater(sum(size for size, _ in sizes), 800_000_000)
        self.assertLess(sum(taken for _, taken in sizes), 1 << 20)

    def test_tokens_per_second_of_a_random_model_with_its_trace(self):
        bench = self.bench()
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
