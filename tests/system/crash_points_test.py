#!/usr/bin/env python3
"""Ends a process of a real run at each of the named places in the code (common/system/crash_point.h), by KILL, SEGV or ABRT. The
run goes on with the bits of a run that was left alone, or ends with the documented exit code; then the same command with
--resume continues it, with the same bits. Nothing is left behind in either case.
RP_CRASH_RUNS: a number of runs, drawn at random, or "all" for every place and signal; RP_SEED: of the draw."""

import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from launched import LaunchedTest, bits, settings

ROOT = Path(__file__).resolve().parents[2]
RUNS = os.environ.get("RP_CRASH_RUNS", "12")
SEED = int(os.environ.get("RP_SEED", "20"))
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
CHANGES = {"max_steps": 8, "save_every": 2}
# Other processes die before that, so that the place is reached.
LOST_WORKER = "worker.compute.takes_task:9:3"
LOST_COORDINATOR = "coordinator.update.updates:9:5"
BEFORE = {"worker.epoch.": LOST_WORKER, "coordinator.epoch.": LOST_WORKER, "launcher.loss.": LOST_WORKER,
          "launcher.restart.": LOST_COORDINATOR}
# Places that a process passes only once or twice in a run.
RARE = (".start.", ".end.", ".epoch.", ".loss.", ".restart.", ".save.", ".child.", ".runs.", "launcher.")
# Places at which no other process can go on; the run ends with 128 + the signal's number.
FINAL = ("coordinator.start.", "coordinator.end.is_finished", "launcher.child.")


def places() -> list[str]:
    """Returns the names in the sources."""
    names = []
    for file in sorted(ROOT.rglob("*.cc")):
        if not {".venv", "build", "tests"} & set(file.relative_to(ROOT).parts):
            names += re.findall(r'RP_CRASH_POINT\("([^"]+)"\)', file.read_text())
    return names


def cases() -> list[tuple[str, signal.Signals]]:
    every = [(place, number) for place in places() for number in SIGNALS]
    return every if RUNS == "all" else random.Random(SEED).sample(every, int(RUNS))


class CrashPointsTest(LaunchedTest):
    def test_crashes(self):
        names = places()
        self.assertEqual(len(names), len(set(names)))
        self.assertGreaterEqual(len(names), 60)
        alone = self.directory / "alone"
        self.run_train(settings(alone, **CHANGES), ("--workers", "1"))
        self.expected = bits(alone)
        begun = time.monotonic()
        ends = {}
        for number, (place, by) in enumerate(cases()):
            with self.subTest(f"{place} {by.name}"):
                self.output = self.directory / f"output-{number}"
                how = self.crash(place, by)
                ends[how] = ends.get(how, 0) + 1
        print(f"{len(cases())} runs in {time.monotonic() - begun:.0f} s: {ends}", file=sys.stderr)

    def crash(self, place: str, by: signal.Signals) -> str:
        number = 1 if any(part in place for part in RARE) else 3
        points = [f"{place}:{int(by)}:{number}"] + [other for start, other in BEFORE.items() if place.startswith(start)]
        once = self.directory / f"{self.output.name}-crashed"
        repeat = f"RP_CRASH_AT={','.join(points)} RP_CRASH_ONCE={once} rp-launch --workers 2 train ..."
        process = subprocess.run(self.command(settings(self.output, **CHANGES), ["--workers", "2"]), capture_output=True, text=True,
                                 timeout=120, env=os.environ | {"RP_CRASH_AT": ",".join(points), "RP_CRASH_ONCE": str(once)})
        what = f"{repeat}\n{process.returncode}\n{process.stdout[-1000:]}{process.stderr[-2000:]}"
        self.assertTrue(Path(f"{once}.{place}").exists(), f"the place is not reached: {what}")
        self.assert_nothing_left(within_s=2 if process.returncode < 0 else 0)
        if process.returncode == 0:
            self.assertEqual(bits(self.output), self.expected, what)
            return "went on"
        if place.startswith("launcher.") and not place.startswith("launcher.child."):
            self.assertEqual(process.returncode, -by, what)
        else:
            self.assertTrue(place.startswith(FINAL), what)
            self.assertEqual(process.returncode, 128 + by, what)
        self.run_train(settings(self.output, **CHANGES) + ["--resume", "auto"])
        self.assertEqual(bits(self.output), self.expected, what)
        return "resumed"


if __name__ == "__main__":
    unittest.main()
