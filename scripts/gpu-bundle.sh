#!/usr/bin/env bash
# Builds the programs for one kind of GPU, and collects in build/gpu-bundle/ what scripts/gpu-check.sh needs on a machine that has a GPU, CUDA
# and LibTorch (Python's torch), but nothing of this project: docs/gpu-check.md.
#   scripts/gpu-bundle.sh [--parts "kernels bits"] [--architectures 90] [--build build/gpu] [--wheels DIR]
# Parts: the bundle contains only what these need (tools/gpu_check/parts.py). Architectures as CMake names them: 89, "80;90". DIR: wheels of
# the Python package roundpipe and of the packages that it needs.
# Exit code 0: the bundle exists and is smaller than 64 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=90
build=build/gpu
bundle=build/gpu-bundle
wheels=
parts=()
most_kib=$((64 * 1024))

libraries=(libroundpipe.so libroundpipe_cuda.so)
made=()     # paths of the built programs
carried=()  # those of `libraries` that the programs need
files=(scripts/gpu-check.sh tools/gpu_check tools/gpu_status.py tools/make_random_model.py tools/token_file.py tests/parity/families.py)

fail() {
  echo "gpu-bundle.sh: $1" >&2
  exit "${2:-1}"
}

while (($#)); do
  case $1 in
    --parts) read -r -a parts <<<"${2:-}"; ((${#parts[@]})) || fail "--parts needs parts as 'kernels bits'" 2; shift ;;
    --architectures) [[ ${2:-} =~ ^[0-9a-z]+(\;[0-9a-z]+)*$ ]] || fail "--architectures needs a list as 89 or '80;90'" 2; architectures=$2; shift ;;
    --build) [[ -n ${2:-} ]] || fail "--build needs a folder" 2; build=$2; shift ;;
    --wheels) compgen -G "${2:-}/*.whl" >/dev/null || fail "--wheels needs a folder with wheels" 2; wheels=$2; shift ;;
    *) fail "unknown option '$1'; usage: scripts/gpu-bundle.sh [--parts 'kernels bits'] [--architectures 90] [--build build/gpu] [--wheels DIR]" 2 ;;
  esac
  shift
done

needs() { PYTHONDONTWRITEBYTECODE=1 python3 tools/gpu_check/parts.py "$@" || exit 2; }
wanted=$(needs programs "${parts[@]}")
mapfile -t programs <<<"$wanted"
wanted=$(needs files "${parts[@]}")
mapfile -t needed_files <<<"$wanted"

# A build folder that existed before keeps its own settings, whatever happens here.
keep_settings() {
  [[ -f $build/CMakeCache.txt ]] || return 0
  cp -p "$build/CMakeCache.txt" "$build/CMakeCache.txt.before"
  trap 'mv "$build/CMakeCache.txt.before" "$build/CMakeCache.txt" && cmake -B "$build" -Wno-dev >/dev/null' EXIT
}

# Compiles machine code for these cards only, because code for other cards would account for most of
# a build's size.
compile() {
  local real=() each
  for each in ${architectures//;/ }; do real+=("$each-real"); done
  local list
  list=$(IFS=';'; echo "${real[*]}")
  cmake --preset release -B "$build" -DRP_CUDA=ON -DRP_CUDA_ARCHITECTURES="$list" -Wno-dev >/dev/null
  cmake --build "$build" --target "${programs[@]}"
  # The plug-in is loaded only by programs that are linked to the library next to it.
  mapfile -t made < <(built "${programs[@]}")
  if [[ $(readelf -d "${made[@]}") == *"[libroundpipe.so"* ]]; then
    cmake --build "$build" --target roundpipe_cuda
    carried=("${libraries[@]}")
  fi
}

# Prints the paths of these built programs.
built() {
  local each file
  for each in "$@"; do
    for file in "$build/bin/$each" "$build/tests/$each"; do [[ ! -f $file ]] || echo "$file"; done
  done
}

# Prints the libraries that a file needs and that the target machine may lack. Omits those of LibTorch, CUDA, C and C++, and OpenSSL, which the
# machine's Python has and may need in a newer version.
needed_by() {
  ldd "$1" | awk '$3 ~ /^\// { print $3 }' |
    { grep -vE '/(torch/lib|nvidia|cuda[^/]*)/|/lib(c|crypto|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s|cuda|cudart|nvidia-ml)\.so|/libroundpipe' || true; }
}

collect() {
  rm -rf "$bundle"
  mkdir -p "$bundle/bin" "$bundle/lib" "$bundle/data"
  local each
  install -m 755 "${made[@]}" "$bundle/bin/"
  for each in "${carried[@]}"; do
    # The name that programs load it by.
    local name
    name=$(readelf -d "$build/lib/$each" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
    install -m 755 "$build/lib/$each" "$bundle/lib/${name:-$each}"
  done
  while read -r each; do
    install -m 755 "$each" "$bundle/lib/"
  done < <(find "$bundle/bin" "$bundle/lib" -type f | while read -r each; do needed_by "$each"; done | sort -u)
  find "$bundle/bin" "$bundle/lib" -type f -exec strip --strip-debug {} +
  .venv/bin/python -c 'import importlib.metadata; print(importlib.metadata.version("torch"))' >"$bundle/lib/torch-version"
  if ((${#parts[@]})); then echo "${parts[*]}" >"$bundle/parts"; fi
  for each in "${files[@]}" "${needed_files[@]}"; do
    [[ -n $each && $each != data/* ]] || continue
    mkdir -p "$bundle/$(dirname "$each")"
    cp -r "$each" "$bundle/$each"
  done
  if [[ -n $wheels ]]; then
    mkdir "$bundle/wheels"
    cp "$wheels"/*.whl "$bundle/wheels/"
  fi
  find "$bundle" -name __pycache__ -prune -exec rm -rf {} +
  for each in "${needed_files[@]}"; do
    case $each in
      data/tiny) .venv/bin/python tests/system/make_tiny_model.py "$bundle/$each" >/dev/null ;;
      data/families) .venv/bin/python tests/parity/make_gpu_cases.py "$bundle/$each" >/dev/null ;;
    esac
  done
}

# Prints the newest version of these symbols that any file needs, e.g. GLIBC_2.36.
newest() {
  find "$bundle/bin" "$bundle/lib" -type f ! -name torch-version -exec readelf -V {} + | grep -oE "$1_[0-9.]+" | sort -uV | tail -n 1
}

[[ -x .venv/bin/python ]] || fail "there is no .venv: run scripts/setup.sh" 69
keep_settings
compile
collect
kib=$(du -sk --apparent-size "$bundle" | cut -f1)
printf '%s: %d.%d MiB for sm_%s; needs %s, %s, LibTorch of the same version, CUDA %s\n' "$bundle" $((kib / 1024)) $((kib % 1024 * 10 / 1024)) \
  "${architectures//;/, sm_}" "$(newest GLIBC)" "$(newest GLIBCXX)" "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
((kib <= most_kib)) || fail "it is larger than 64 MiB; build for fewer architectures"
