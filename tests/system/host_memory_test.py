#!/usr/bin/env python3
"""Host memory of a run: the amount that `train` plans, the amount that the kernel allocates, and a store in files that
is larger than memory."""

import os
import re
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import launched
from launched import LaunchedTest, bits, make_model, settings
from memory_group import MemoryGroup, NoMemoryGroup

MEDIUM = dict(hidden_size=320, intermediate_size=1280, num_hidden_layers=4)  # 6.6 million parameters: a store of 105 MB
# 67 million parameters in thin layers: a store of a GiB, compared with which a stage's buffers are
# small.
LARGE = dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=16, num_attention_heads=8, num_key_value_heads=8)
LARGE_PLAN = "forward 0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 | fused 16-17 | backward 14-15 12-13 10-11 8-9 6-7 4-5 2-3 0-1"
# Stages are cut again after round 10. With two rounds in flight and 4 workers, each worker has run
# each of the new stages by this step.
SETTLED = 18
HALF_A_PRINTED_MIB = 1 << 19
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def bytes_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


def segments_of(launcher: int) -> dict[tuple[int, int], int]:
    """Returns the bytes that are allocated for the unnamed files in memory and on disk that rp-launch holds, by
    file."""
    sizes = {}
    for entry in Path(f"/proc/{launcher}/fd").iterdir():
        name = os.readlink(entry)
        if name.endswith(" (deleted)") and (name.startswith("/memfd:") or "/#" in name):
            info = entry.stat()
            sizes[info.st_dev, info.st_ino] = info.st_blocks * 512
    return sizes


class MeasuredTest(LaunchedTest):
    """Compares the memory of a run, measured from outside, with what the run prints."""

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="rp-system-")
        cls.addClassCleanup(directory.cleanup)
        cls.model = make_model(Path(directory.name), **MEDIUM)

    def run_measured(self, steps: tuple[int, ...], launch: tuple = ("--workers", "2"), **changes) -> tuple[str, dict[int, int]]:
        """Returns the run's output, and the bytes of its segments after each of these steps."""
        process = subprocess.Popen(self.command(settings(self.output, **changes), list(launch)),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + launched.DEADLINE_S * 5
        text, measured = "", {}
        for line in process.stdout:
            self.assertLess(time.monotonic(), deadline)
            text += line
            step = re.match(r"step +(\d+)/", line)
            if step and int(step[1]) in steps:
                measured[int(step[1])] = sum(segments_of(process.pid).values())
        self.assertEqual(process.wait(timeout=60), 0, text)
        process.stdout.close()
        return text, measured

    def check(self, bytes_per_parameter: int, num_steps: int = 24, workers: int = 2, **changes) -> None:
        early, late = max(num_steps // 2, SETTLED), num_steps - 2
        launch = ("--workers", str(workers))
        text, measured = self.run_measured((early, late), launch, model=self.model, max_steps=num_steps, **changes)
        parameters = int(re.search(r"([\d,]+) parameters,", text)[1].replace(",", ""))
        per_parameter = float(re.search(r"\(([\d.]+) bytes a parameter", text)[1])
        self.assertAlmostEqual(per_parameter / bytes_per_parameter, 1, delta=0.01)
        budget = bytes_of(re.findall(r"^activations: budget ([\d.]+ \w+),", text, re.MULTILINE)[-1])
        planned, told = map(bytes_of, re.search(r"^host memory: planned (.*), measured (.*)$", text, re.MULTILINE).groups())
        expected = parameters * bytes_per_parameter + budget
        print(f"{changes}: {parameters} parameters, budget {budget / 2**20:.1f} MiB, expected {expected / 2**20:.1f} MiB, "
              f"planned {planned / 2**20:.1f}, told {told / 2**20:.1f}, "
              f"measured {measured[early] / 2**20:.1f} and {measured[late] / 2**20:.1f} MiB")
        self.assertAlmostEqual(measured[late] / expected, 1, delta=0.03)
        self.assertAlmostEqual(planned / expected, 1, delta=0.03)
        self.assertAlmostEqual(told / measured[late], 1, delta=0.01)
        # The most that is alive at once depends on which tasks happen to run at the same time. So it may be reached late, but it is planned.
        self.assertLess(measured[late], max(1.01 * measured[early], planned + HALF_A_PRINTED_MIB), "it grows from step to step")


class HostMemoryTest(MeasuredTest):
    def test_sync_takes_16_bytes_a_parameter_and_its_budget(self):
        self.check(16)

    def test_a_budget_of_long_sequences_is_met_by_four_workers(self):
        self.check(16, workers=4, batch_size=64, num_microbatches=8, sequence_length=128)


class OtherModesTest(MeasuredTest):
    """The same comparison in the other modes. tests/pipeline/memory_plan_test.cc does it in one process."""

    def test_async_takes_18(self):
        self.check(18, **{"async": True})

    def test_several_rounds_a_step_take_20(self):
        self.check(20, rounds_per_step=2)

    def test_fp32_takes_16_and_async_20(self):
        self.check(16, dtype="fp32")
        self.output = self.directory / "async"
        self.check(20, dtype="fp32", **{"async": True})


class QuantisedMemoryTest(MeasuredTest):
    def test_nf4_takes_what_is_planned(self):
        last = 22
        text, measured = self.run_measured((last,), model=self.model, max_steps=24, lora_rank=4, quantize="nf4")
        planned, told = map(bytes_of, re.search(r"^host memory: planned (.*), measured (.*)$", text, re.MULTILINE).groups())
        bits_each = float(re.search(r"frozen ones are quantised, with ([\d.]+) bits each", " ".join(text.split()))[1])
        print(f"planned {planned / 2**20:.1f}, told {told / 2**20:.1f}, measured {measured[last] / 2**20:.1f} MiB; {bits_each} bits each")
        self.assertAlmostEqual(measured[last] / planned, 1, delta=0.03)
        self.assertAlmostEqual(told / measured[last], 1, delta=0.01)
        self.assertLess(bits_each / 8, 0.57)


class FlatMemoryTest(MeasuredTest):
    """The same comparison over many steps."""

    def test_500_steps(self):
        self.check(16, num_steps=500)

    def test_500_steps_async(self):
        self.check(18, num_steps=500, **{"async": True})


class ParamsOnTest(LaunchedTest):
    def setUp(self):
        super().setUp()
        self.files = self.directory / "files"
        self.files.mkdir()

    def test_files_give_the_same_bits_and_leave_nothing(self):
        for mode in ({}, {"async": True, "rounds_per_step": 2}):
            with self.subTest(mode):
                self.output = self.directory / f"memory{len(mode)}"
                self.run_train(settings(self.output, **mode))
                in_files = self.directory / f"files{len(mode)}"
                process = self.run_train(settings(in_files, **mode), ("--workers", "2", "--params-on", str(self.files)))
                self.assertIn("weights", process.stdout)
                self.assertIn(", in files ", process.stdout)
                self.assertEqual(bits(in_files), bits(self.output))
                self.assertEqual(list(self.files.iterdir()), [])

    def test_the_variable_does_the_same_and_the_kernel_has_nothing_left_after_a_kill(self):
        environment = os.environ | {"RP_PARAMS_ON": str(self.files)}
        process = subprocess.Popen(self.command(settings(self.output, max_steps=10000), ["--workers", "2"]),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self.addCleanup(process.kill)
        on_disk = 0
        for line in process.stdout:
            if line.startswith("step "):
                device = self.files.stat().st_dev
                on_disk = sum(size for (where, _), size in segments_of(process.pid).items() if where == device)
                process.kill()
                break
        process.communicate()
        self.assertGreater(on_disk, 16 * 100_000)
        self.assertEqual(list(self.files.iterdir()), [])
        self.assert_nothing_left(within_s=2)

    def test_a_wrong_directory_is_refused(self):
        missing = self.directory / "missing"
        self.refused(2, f"--params-on {missing}: No such file or directory", launch=("--params-on", str(missing)))
        file = self.directory / "file"
        file.write_text("")
        self.refused(2, f"--params-on {file}: it is no directory", launch=("--params-on", str(file)))

    def test_a_full_disk_is_refused(self):
        mounted = ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs -o size=1m rp-test "$0" || exit 99; exec "$@"', str(self.files)]
        process = subprocess.run(mounted + self.command(settings(self.output), ["--workers", "1", "--params-on", str(self.files)]),
                                 capture_output=True, text=True, timeout=launched.DEADLINE_S)
        if process.returncode == 99 or "unshare:" in process.stderr:
            self.skipTest("needs the right to mount: " + process.stderr)
        self.assertEqual(process.returncode, 69, process.stdout + process.stderr)
        for part in (f"--params-on {self.files}: the host store needs", "1.00 MiB are free there", "make room"):
            self.assertIn(part, process.stderr)
        self.assertEqual(process.stderr.count("error"), 1, process.stderr)
        self.assertFalse(self.output.exists())


class OutOfMemoryTest(LaunchedTest):
    TOY = launched.PROGRAMS.parent / "tests/toy_program"

    def test_the_report_names_the_limit_and_the_worker_is_the_victim(self):
        try:
            group = MemoryGroup(256 << 20)
        except NoMemoryGroup as why:
            self.skipTest(f"memory cannot be limited here ({why})")
        self.addCleanup(group.remove)
        command = [str(launched.PROGRAMS / "rp-launch"), "--workers", "2", "--on-worker-failure", "abort", str(self.TOY), "eat_memory"]
        process = subprocess.run(group.command(command), capture_output=True, text=True, timeout=launched.DEADLINE_S)
        self.assertEqual(process.returncode, 137, process.stderr)
        self.assertRegex(process.stderr, r"^rp-launch: worker 0 \(pid \d+\) was killed by SIGKILL")
        self.assertRegex(process.stderr, r"out-of-memory killer ended it: the job's control group has a memory limit of 256 MiB and has "
                                         r"used up to 2\d\d MiB; give the job more memory")


class SmallerThanTheStoreTest(LaunchedTest):
    """A memory limit of half the store, which only a control group can set."""

    def test_half_the_store_is_enough_memory_with_files_and_gives_the_same_bits(self):
        run = dict(model=make_model(self.directory / "model", **LARGE), max_steps=3, batch_size=4, num_microbatches=2)
        plan = self.directory / "plan"
        plan.write_text(LARGE_PLAN)
        launch = ["--workers", "1", "--plan", str(plan)]
        roomy = self.directory / "roomy"
        process = self.run_train(settings(roomy, **run), launch)
        store = bytes_of(re.search(r"^host memory: planned (.*),", process.stdout, re.MULTILINE)[1])
        self.assertGreater(store, 1 << 30, "small beside what the processes take themselves")
        files = self.directory / "files"
        files.mkdir()
        with_files = self.command(settings(self.output, **run), [*launch, "--params-on", str(files)])
        try:
            group = MemoryGroup(int(store / 2))
        except NoMemoryGroup as why:
            subprocess.run(with_files, check=True, capture_output=True, timeout=launched.DEADLINE_S)
            self.assertEqual(bits(self.output), bits(roomy))
            self.skipTest(f"memory cannot be limited here ({why}); without a limit the bits are the same")
        self.addCleanup(group.remove)
        without = self.command(settings(self.directory / "refused", **run), launch)
        process = subprocess.run(group.command(without), capture_output=True, text=True, timeout=launched.DEADLINE_S)
        self.assertEqual(process.returncode, 69, process.stdout + process.stderr)
        self.assertIn("--params-on", process.stderr)
        start = time.monotonic()
        process = subprocess.run(group.command(with_files), capture_output=True, text=True, timeout=10 * launched.DEADLINE_S)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        print(f"store {store / 2**20:.0f} MiB, limit {store / 2**21:.0f} MiB, highest {group.highest_bytes() / 2**20:.0f} MiB, "
              f"{group.times_at_limit()} times at the limit, {time.monotonic() - start:.1f} s")
        self.assert_nothing_left()
        self.assertEqual(bits(self.output), bits(roomy))
        self.assertLessEqual(group.highest_bytes(), store / 2)
        self.assertGreater(group.times_at_limit(), 0, "the limit was never felt")


if __name__ == "__main__":
    unittest.main()
