#!/usr/bin/env bash
# Builds a preset of CMakePresets.json into build/<preset>, programs into build/<preset>/bin.
#   scripts/build.sh [release|debug|asan|tsan] [--no-tests] [target ...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=release
options=()
if [[ ${1:-} == release || ${1:-} == debug || ${1:-} == asan || ${1:-} == tsan ]]; then
  preset=$1
  shift
elif [[ -n ${1:-} && $1 != --no-tests ]]; then
  echo "build.sh: no preset '$1'; there are release, debug, asan and tsan" >&2
  exit 2
fi
if [[ ${1:-} == --no-tests ]]; then
  options+=(-DRP_TESTS=OFF -DRP_BENCHMARKS=OFF)
  shift
fi
cmake --preset "$preset" "${options[@]}" -Wno-dev >build-configure.log 2>&1 || {
  cat build-configure.log >&2
  rm -f build-configure.log
  exit 1
}
rm -f build-configure.log
exec cmake --build "build/$preset" ${1:+--target "$@"}
