#!/usr/bin/env bash
# Fuzzes readers of untrusted bytes with libFuzzer, under the address and undefined-behaviour sanitizers, in build/fuzz: docs/design/fuzzing.md.
#   scripts/fuzz.sh TARGET|all [--runs N] [OPTION...]      N inputs per target (default: 1000000); options of libFuzzer, e.g. -jobs=2
# Exit code 0 only if every input of every target was processed within 1 s and 1 GiB. Inputs that were not are stored in build/fuzz/failures.
# The inputs that libFuzzer will start from next time are stored in build/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(tests/fuzz/corpus/*/)
all=("${all[@]%/}")
all=("${all[@]##*/}")
target=${1:-}
if [[ $target != all && ! -d tests/fuzz/corpus/$target || -z $target ]]; then
  echo "fuzz.sh: no target '$target'; usage: scripts/fuzz.sh TARGET|all [--runs N] [OPTION...]; targets: ${all[*]}" >&2
  exit 2
fi
shift
runs=1000000
if [[ ${1:-} == --runs ]]; then
  runs=${2:?"fuzz.sh: --runs needs a number"}
  shift 2
fi
[[ $target == all ]] || all=("$target")

runtime=$(clang++-16 --print-runtime-dir)/libclang_rt.fuzzer-$(uname -m).a || exit 69
if [[ ! -e $runtime ]]; then
  echo "fuzz.sh: clang has no libFuzzer ($runtime is missing); run scripts/setup.sh" >&2
  exit 69
fi
mkdir -p build
cmake --preset fuzz -Wno-dev >build/fuzz-configure.log 2>&1 || {
  cat build/fuzz-configure.log >&2
  exit 1
}
cmake --build build/fuzz --target "${all[@]/#/fuzz_}"

# A finding of either sanitizer ends the process.
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=allocator_may_return_null=0:malloc_context_size=2:quarantine_size_mb=16
# Temporary files of inputs are kept in memory if possible.
[[ -w /dev/shm ]] && export TMPDIR=/dev/shm
failed=()
for name in "${all[@]}"; do
  mkdir -p "build/fuzz/corpus/$name" build/fuzz/failures
  cat tests/fuzz/dictionaries/{common,"$name"}.dict >"build/fuzz/$name.dict"
  echo "== $name: $runs inputs"
  "build/fuzz/fuzz/fuzz_$name" -runs="$runs" -max_len=4096 -timeout=1 -rss_limit_mb=1024 -dict="build/fuzz/$name.dict" \
    -artifact_prefix="build/fuzz/failures/$name-" -print_final_stats=1 -verbosity=0 "$@" \
    "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" || failed+=("$name")
done
if ((${#failed[@]})); then
  echo "fuzz.sh: failed: ${failed[*]}; repeat an input by build/fuzz/fuzz/fuzz_TARGET FILE" >&2
  exit 1
fi
