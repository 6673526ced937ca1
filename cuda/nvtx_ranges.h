// cuda/nvtx_ranges.h
// Ranges and names by NVTX, for NVIDIA's profilers. Header-only on their side: the profiler's library is found by the
// variable NVTX_INJECTION64_PATH, which the profiler sets for the programs that it starts.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "device/profiler_ranges.h"

namespace rp {

struct NamedStream {
  CUstream stream = nullptr;
  std::string name{};
};

// nullptr where no profiler is attached to this process, and in builds without NVTX's headers. Names the streams, and
// with the first range all threads of the process that have names of ours ("rp-...").
[[nodiscard]] std::unique_ptr<ProfilerRanges> make_nvtx_ranges(const std::vector<NamedStream>& streams);

}  // namespace rp
