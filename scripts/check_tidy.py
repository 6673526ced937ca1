#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) over the rooms that a build with clang compiled.

    scripts/check_tidy.py [BUILD_DIRECTORY]     default: build/asan

Prints each finding once; exit code 1 if there is one. Tests, benchmarks and the sources of precompiled headers are
left out.
"""
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FINDING = re.compile(r"^(.+?):\d+:\d+: (?:warning|error): ")


def sources(build: Path) -> list[str]:
    """Returns the compiled sources of the rooms; with RP_UNITY, each of them includes several source files."""
    commands = json.loads((build / "compile_commands.json").read_text())
    names = [command["file"] for command in commands]
    relative = [os.path.relpath(name, build if name.startswith(f"{build}/") else ROOT) for name in names]
    left_out = re.compile(r"tests/|benchmarks/|.*(cmake_pch|_headers\.cc$)")
    return [name for name, place in zip(names, relative) if not left_out.match(place)]


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
    build = (Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/asan").resolve()
    if not (build / "compile_commands.json").exists():
        print(f"check_tidy.py: {build} has no compile_commands.json; build the preset asan first", file=sys.stderr)
        return 2
    names = sources(build)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        all_findings = {finding for found in pool.map(lambda name: findings(build, name), names) for finding in found}
    for finding in sorted(all_findings):
        print(finding.replace(f"{ROOT}/", ""))
    print(f"check_tidy.py: {len(all_findings)} findings in {len(names)} compiled sources")
    return 1 if all_findings else 0


if __name__ == "__main__":
    sys.exit(main())
