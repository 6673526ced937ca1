#!/usr/bin/env python3
"""The result of `cmake --install` is sufficient for a project outside the tree, wherever it is moved to. The folder of
the test stays in the build folder under the same name, so that ccache recognises the only compiled file that includes
LibTorch."""

import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["RP_PROGRAMS"]).parent
TORCH = Path(os.environ["RP_TORCH_FOLDER"])
PLACE = BUILD / "tests" / "installed"
PREFIX = PLACE / "prefix"


def run(*command, expect: int = 0, **options) -> subprocess.CompletedProcess:
    words = [str(word) for word in command]
    process = subprocess.run(words, capture_output=True, text=True, timeout=300, **options)
    if expect is not None and process.returncode != expect:
        raise AssertionError(f"{words} ended with {process.returncode}:\n{process.stdout[-3000:]}{process.stderr[-3000:]}")
    return process


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(PLACE, ignore_errors=True)
        run("cmake", "--install", BUILD, "--prefix", PLACE / "first", "--strip")
        (PLACE / "first").rename(PREFIX)  # nothing in it may contain its former path

    def configure(self, *settings: str, expect: int = 0, **options) -> subprocess.CompletedProcess:
        return run("cmake", "-G", "Ninja", "-S", SOURCE / "examples" / "outside", "-B", PLACE / "build", "-DCMAKE_BUILD_TYPE=Release",
                   f"-DCMAKE_PREFIX_PATH={PREFIX}", *settings, expect=expect, **options)

    def refusal(self, *settings: str, **options) -> str:
        """Returns the single paragraph that find_package() prints, without its line breaks."""
        shutil.rmtree(PLACE / "build", ignore_errors=True)
        process = self.configure(*settings, expect=1, **options)
        self.assertEqual(process.stderr.count("CMake Error"), 1, process.stderr)
        return " ".join(process.stderr.split())

    def test_a_project_outside_the_tree_builds_and_trains(self):
        shutil.rmtree(PLACE / "build", ignore_errors=True)
        launcher = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else {}
        self.configure(f"-DRP_TORCH_DIR={TORCH}", env=os.environ | launcher)
        build = run("cmake", "--build", PLACE / "build", env=os.environ | {"CCACHE_SLOPPINESS": "time_macros"})
        self.assertNotIn("warning", build.stdout + build.stderr)
        program = PLACE / "build" / "outside"

        alone = run(program)
        launched = run(PREFIX / "bin" / "rp-launch", "--workers", "2", program)
        self.assertEqual(launched.stdout, alone.stdout)
        self.assertEqual((alone.stderr, launched.stderr), ("", ""))
        losses = [float(loss) for loss in re.findall(r"loss ([^\s]+)", alone.stdout)]
        self.assertEqual(len(losses), 10)
        self.assertLess(losses[-1], losses[0] / 10)

        libraries = dict(re.findall(r"^\s*(lib\S+) => (\S+)", run("ldd", program).stdout, re.MULTILINE))
        self.assertEqual(Path(libraries["libroundpipe.so.0.1"]).parent, PREFIX / "lib")
        for name in ("libtorch_cpu.so", "libc10.so", "libgomp.so.1"):
            self.assertTrue(Path(libraries[name]).samefile(TORCH / "lib" / name), f"{name}: {libraries[name]}")

    def test_the_installed_files_name_no_folder_of_this_machine(self):
        files = [file for file in PREFIX.rglob("*") if file.is_file()]
        names = {str(file.relative_to(PREFIX)) for file in files}
        self.assertLessEqual({"bin/rp-launch", "bin/train", "lib/libroundpipe.so", "include/roundpipe/roundpipe.h",
                              "lib/cmake/roundpipe/roundpipe-config.cmake"}, names)
        for file in files:
            data = file.read_bytes()
            for folder in {SOURCE, SOURCE.resolve(), BUILD, PLACE, TORCH, TORCH.resolve()}:
                self.assertFalse(str(folder).encode() in data, f"{file} has {folder}")

    def test_train_finds_libtorch_by_one_link(self):
        train, link = PREFIX / "bin" / "train", PREFIX / "lib" / "libtorch"
        link.unlink(missing_ok=True)
        self.assertIn("libtorch_cpu.so", run(train, "--version", expect=127).stderr)
        self.assertIn("LD_LIBRARY_PATH=$(python3 -c", run(PREFIX / "bin" / "rp-launch", "--workers", "2", "train", "--version", expect=127).stderr)
        link.symlink_to(TORCH.resolve())
        self.addCleanup(link.unlink)
        self.assertRegex(run(PREFIX / "bin" / "rp-launch", "--workers", "2", "train", "--version").stdout, r"^train \d")

    def test_libtorch_is_found_from_python(self):
        programs = PLACE / "programs"
        programs.mkdir(exist_ok=True)
        python = programs / "python3"
        python.write_text(f'#!/bin/sh\nexec "{os.environ["RP_PYTHON"]}" "$@"\n')
        python.chmod(0o755)
        path = {"PATH": f"{programs}:{os.environ['PATH']}"}
        shutil.rmtree(PLACE / "build", ignore_errors=True)
        self.configure(env=os.environ | path)
        python.write_text("#!/bin/sh\nexit 1\n")
        message = self.refusal(env=os.environ | path)
        self.assertIn("LibTorch 2.", message)
        self.assertIn("-DRP_TORCH_DIR=<folder of the torch package>", message)

    def test_another_libtorch_is_refused_by_its_version(self):
        other = PLACE / "torch"
        for file, text in (("lib/libtorch_cpu.so", ""), ("include/torch/headeronly/version.h", '#define TORCH_VERSION \\\n  "1.13.1"\n')):
            (other / file).parent.mkdir(parents=True, exist_ok=True)
            (other / file).write_text(text)
        message = self.refusal(f"-DRP_TORCH_DIR={other}")
        self.assertIn("was built with LibTorch 2.", message)
        self.assertIn(f"{other} is 1.13.1", message)


if __name__ == "__main__":
    unittest.main()
