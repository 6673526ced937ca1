#!/usr/bin/env bash
# Builds and runs all tests: with LibTorch (release), and those without LibTorch under AddressSanitizer and ThreadSanitizer.
# clang makes the build with AddressSanitizer, so that its thread-safety analysis and clang-tidy check the sources, too.
#   scripts/test.sh [--slow]     --slow: also the slow tests
# Exit code 0 only if everything was built and passed, including the tests that docs/features.md names.
set -uo pipefail
cd "$(dirname "$0")/.."

without_slow='|slow' not_slow=(-LE slow)
if [[ ${1:-} == --slow ]]; then
  without_slow= not_slow=()
  shift
fi
if (($#)); then
  echo "test.sh: unknown option '$1'; usage: scripts/test.sh [--slow]" >&2
  exit 2
fi

results=build/test-results
rm -rf "$results"
mkdir -p "$results"
failed_phases=()
# Python starts twice as fast from compiled modules, which are kept out of the sources.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$PWD/build/pycache"
# Two tests at a time have twice as many threads of LibTorch as there are processors. Threads that wait for others are to leave
# their processor to them, and not spin. The number of threads is the same, and so is every bit.
export OMP_WAIT_POLICY=passive

note() { printf '\n== %s (after %d s)\n' "$1" "$SECONDS"; }

beside=()  # while tests with deadlines run: what makes all other commands use only the processor time that these leave

# build PRESET: returns false if the build fails.
build() {
  local preset=$1
  note "$preset: build"
  if ! "${beside[@]}" scripts/build.sh "$preset" >"$results/$preset.build.log" 2>&1; then
    tail -n 40 "$results/$preset.build.log"
    echo "test.sh: the build of $preset failed; all of its output is in $results/$preset.build.log" >&2
    failed_phases+=("build of $preset")
    return 1
  fi
  # The build has no -Werror; only the other presets do: docs/design/build.md.
  if grep -B 1 -A 6 ': warning: ' "$results/$preset.build.log"; then
    echo "test.sh: the build of $preset gave warnings (above)" >&2
    failed_phases+=("warnings of $preset")
  fi
}

# tidy: runs clang-tidy over what was compiled anew. Returns false if it finds something.
tidy() {
  note "clang-tidy"
  "${beside[@]}" scripts/build.sh asan tidy >"$results/tidy.log" 2>&1 && return
  grep -vE '^\[[0-9]+/[0-9]+\] ' "$results/tidy.log" | tail -n 100
  return 1
}

# suite PRESET NAME [ctest options...]: runs tests of a built preset. Returns false if one fails.
suite() {
  local preset=$1 name=$2 begin=$SECONDS failed=0
  shift 2
  "${beside[@]}" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --output-junit "$PWD/$results/$name.xml" \
    "$@" >"$results/$name.log" 2>&1 || failed=1
  note "$name: tests, begun after $begin s"
  # Prints the failed tests with their output, without the list of passed tests.
  ((failed)) && grep -vE '^ *(Start|[0-9]+/[0-9]+ Test).*|^$' "$results/$name.log" | tail -n 200
  grep -E 'tests passed|No tests' "$results/$name.log"
  return $failed
}

# check NAME command...: runs a suite or check and remembers its failure.
check() {
  "${@:2}" || failed_phases+=("$1")
}

note "set-up"
scripts/setup.sh || exit $?
jobs=$(nproc)
systems=
if build release; then
  ctest --test-dir build/release --show-only=json-v1 >"$results/release.json"
  check "names of tests in docs/features.md" /usr/bin/python3 scripts/check_features.py --names docs/features.md "$results/release.json"
  check "tests of release-units" suite release release-units -j"$jobs" -L 'unit|protocol' -LE slow
  # These tests run several processes each and mostly wait. They run one at a time (two, where one hardly computes), so that their
  # deadlines are meaningful. All others run with what they leave of the processors.
  set -m  # as a process group of their own, which an interrupted test.sh ends
  suite release release-systems -j2 -LE "unit|protocol|untimed$without_slow" </dev/null &
  systems=$!
  set +m
  trap 'kill -- "-$systems" 2>/dev/null' EXIT
  beside=(chrt --idle 0)
  # The results of these tests do not depend on timing.
  check "tests of release-untimed" suite release release-untimed -j"$jobs" -L untimed "${not_slow[@]}"
fi
built=()
for preset in asan tsan; do
  build "$preset" && built+=("$preset")
done
if [[ " ${built[*]} " == *" asan "* ]]; then
  check clang-tidy tidy
fi
for preset in "${built[@]}"; do
  # ThreadSanitizer knows neither what another process does nor that two addresses are the same memory: with workers as processes, or
  # over mappings of their own, it sees less than over one mapping.
  except=(-LE slow)
  [[ $preset == tsan ]] && except+=(-E 'EveryInstructionSet|TaskFile.ThatIsDamaged|DirectWriter|two mappings|[(/]processes|OfTwoToEightProcesses|GpuReplay')
  check "tests of $preset" suite "$preset" "$preset" -j$((jobs + 1)) -L 'unit|protocol' "${except[@]}"  # some only wait
done
[[ $systems ]] && check "tests of release-systems" wait "$systems"

/usr/bin/python3 - "$results" <<'PYTHON'
import sys
import xml.etree.ElementTree
from pathlib import Path

passed, failed, skipped, times = 0, [], 0, []
for file in sorted(Path(sys.argv[1]).glob("*.xml")):
    for case in xml.etree.ElementTree.parse(file).getroot().iter("testcase"):
        name = f"{file.stem}: {case.get('name')}"
        times.append((float(case.get("time") or 0), name))
        if case.get("status") == "run":
            passed += 1
        elif case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            failed.append(name)
print("\nThe ten slowest tests:")
for seconds, name in sorted(times, reverse=True)[:10]:
    print(f"  {seconds:7.1f} s  {name}")
for name in failed:
    print(f"FAILED  {name}")
print(f"\n{passed} passed, {len(failed)} failed" + (f", {skipped} skipped" if skipped else ""))
PYTHON
note "features"
/usr/bin/python3 scripts/check_features.py docs/features.md "$results"/*.xml || failed_phases+=("proofs of features")
echo "in $SECONDS s"
if ((${#failed_phases[@]})); then
  printf 'test.sh: failed: %s\n' "${failed_phases[@]}" >&2
  exit 1
fi
