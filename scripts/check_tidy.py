#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) over the sources of one target, except those in tests/, as the build compiles them.

    scripts/check_tidy.py BUILD_DIRECTORY TARGET

The build's target `tidy` calls it for each target (cmake/Tidy.cmake): `scripts/build.sh asan tidy`. Prints each finding once; exit code 1 if
there is one.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FINDING = re.compile(r"^(.+?):\d+:\d+: (?:warning|error): ")


def sources(build: Path, target: str) -> list[str]:
    """Returns the compiled sources of a target; with RP_UNITY, each of them includes several source files."""
    names = [command["file"] for command in json.loads((build / "compile_commands.json").read_text())
             if f"/CMakeFiles/{target}.dir/" in command["command"]]
    left_out = re.compile(rf"({re.escape(str(build))}|{re.escape(str(ROOT))})/tests/|.*/cmake_pch")
    return [name for name in names if not left_out.match(name)]


def findings(build: Path, source: str) -> list[str]:
    """Returns the findings in one compiled source, each with the lines that explain it."""
    run = subprocess.run(["clang-tidy-16", "-p", str(build), "--quiet", source], capture_output=True, text=True, cwd=ROOT)
    found: list[str] = []
    for line in run.stdout.splitlines():
        if FINDING.match(line):
            found.append(line)
        elif found:
            found[-1] += "\n" + line
    if run.returncode != 0 and not found:
        found.append(f"{source}: clang-tidy failed: {run.stderr.strip()}")
    return found


def main() -> int:
    if len(sys.argv) != 3:
        print("check_tidy.py: give a build directory and a target; for all of them: scripts/build.sh asan tidy", file=sys.stderr)
        return 2
    build, target = Path(sys.argv[1]).resolve(), sys.argv[2]
    names = sources(build, target)
    if not names:
        print(f"check_tidy.py: {build} compiles no source of a target {target}", file=sys.stderr)
        return 2
    all_findings = {finding for name in names for finding in findings(build, name)}
    for finding in sorted(all_findings):
        print(finding.replace(f"{ROOT}/", ""))
    return 1 if all_findings else 0


if __name__ == "__main__":
    sys.exit(main())
