#!/usr/bin/env bash
# Runs the checks that need a GPU, and writes a row for each line to a table: docs/gpu-check.md.
#   scripts/gpu-check.sh [--table FILE] [--seconds N] [part ...]    no part: the default parts, about twenty minutes
# Runs in a build tree, and in the bundle that scripts/gpu-bundle.sh creates. Exit code 0: every line was met or not run,
# 1: a line was missed or failed, 2: an invalid argument, 69: there is no GPU.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
table=$root/build/gpu-check.rows
seconds=
python=${RP_PYTHON:-}
[[ -z $python && -x $root/.venv/bin/python ]] && python=$root/.venv/bin/python
python=${python:-python3}
export PYTHONDONTWRITEBYTECODE=1

# From tools/gpu_check/parts.py: the parts in their order, the seconds of each, and the parts that
# run if none is named.
parts=()
telling=()
declare -A seconds_of
while read -r part its_seconds kind; do
  parts+=("$part")
  seconds_of[$part]=$its_seconds
  [[ $kind == telling ]] && telling+=("$part")
done < <("$python" "$root/tools/gpu_check/parts.py" list)
((${#parts[@]})) || { echo "gpu-check.sh: $python cannot run tools/gpu_check/parts.py; RP_PYTHON names a Python" >&2; exit 2; }
# A bundle for some parts lists them in this file.
if [[ -f $root/parts ]]; then read -r -a telling <"$root/parts"; fi

usage() {
  echo "gpu-check.sh: $1; usage: scripts/gpu-check.sh [--table FILE] [--seconds N] [part ...], parts: ${parts[*]}" >&2
  exit 2
}

is_part() {
  local each
  for each in "${parts[@]}"; do [[ $each == "$1" ]] && return 0; done
  return 1
}

# Prints the folders with LibTorch, with the CUDA libraries of its wheels, and with the libraries of
# a bundle. Warns if LibTorch is not the version that the programs were built with.
library_path() {
  "$python" - "$root" <<'PYTHON'
import importlib.metadata
import importlib.util
import pathlib
import sys

root = pathlib.Path(sys.argv[1])
folders = [root / "lib", root / "build" / "gpu-bundle" / "lib"]
torch = importlib.util.find_spec("torch")
here = importlib.metadata.version("torch") if torch else "none (RP_PYTHON names a Python that has it)"
for file in (folder / "torch-version" for folder in folders):
    built = file.read_text().strip() if file.exists() else here
    if built.split("+")[0] != here.split("+")[0]:
        print(f"gpu-check.sh: built with torch {built}, but torch here is {here}: programs may not start", file=sys.stderr)
if torch:
    package = pathlib.Path(torch.origin).parent
    folders += [package / "lib", *sorted(package.parent.glob("nvidia/*/lib"))]
# The folders in which container images have the driver come last: a loader that knows it has
# already found it.
folders += map(pathlib.Path, ("/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"))
print(":".join(str(folder) for folder in folders if folder.is_dir()))
PYTHON
}

# run_part NAME: appends the part's rows to the table. The program ends on its own in time, after at
# most a minute for reading libraries and another for requesting memory. timeout is for a program
# that does not end.
run_part() {
  local limit=${seconds:-${seconds_of[$1]}} code=0
  printf '== %s (at most %s s)\n' "$1" "$limit" >&2
  timeout --kill-after=10 "$((limit + 140))" "$python" "$root/tools/gpu_check" "$1" --seconds "$limit" --table "$table" \
    --scratch "$scratch" || code=$?
  if ((code == 124 || code == 137)); then
    echo "gpu-check.sh: $1 did not end within $limit s; what it has no row for was not run" >&2
  fi
  return "$code"
}

chosen=()
while (($#)); do
  case $1 in
    --table) [[ -n ${2:-} ]] || usage "--table needs a file"; table=$2; shift ;;
    --seconds) [[ ${2:-} =~ ^[0-9]+$ ]] && (($2 >= 10 && $2 <= 480)) || usage "--seconds needs a number from 10 to 480"; seconds=$2; shift ;;
    *) is_part "$1" || usage "no part '$1'"; chosen+=("$1") ;;
  esac
  shift
done
((${#chosen[@]})) || chosen=("${telling[@]}")

[[ ${RP_GPU_HOST_MEMORY:-1G} =~ ^[0-9]+[GT]$ ]] || usage "RP_GPU_HOST_MEMORY is '$RP_GPU_HOST_MEMORY', but it is a size such as 120G"
LD_LIBRARY_PATH=$(library_path)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
export PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer:/usr/local/nvidia/bin
mkdir -p "$(dirname "$table")"
# Models of random weights are created once, in this folder. RP_GPU_SCRATCH keeps it from call to
# call.
scratch=${RP_GPU_SCRATCH:-}
if [[ -z $scratch ]]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
fi
mkdir -p "$scratch"

# Wheels of a bundle are pure Python, so they are installed by unpacking them. The folder of
# Python's own packages need not be writable.
for each in "$root"/wheels/*.whl "$root"/build/gpu-bundle/wheels/*.whl; do
  [[ -e $each ]] && "$python" -m zipfile -e "$each" "$scratch/site"
done
[[ -d $scratch/site ]] && export PYTHONPATH=$scratch/site${PYTHONPATH:+:$PYTHONPATH}

worst=0
for part in "${chosen[@]}"; do
  code=0
  run_part "$part" || code=$?
  # Without a GPU, the other parts would fail in the same way.
  if ((code == 69)); then exit 69; fi
  if ((code != 0)); then worst=1; fi
done
echo "rows: $table; into the page: tools/gpu_status.py $table" >&2
exit "$worst"
