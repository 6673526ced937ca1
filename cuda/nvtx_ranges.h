// cuda/nvtx_ranges.h
// Implements ranges and names with NVTX, for NVIDIA's profilers. NVTX consists of headers only. It
// finds the profiler's library through the environment variable NVTX_INJECTION64_PATH, which a
// profiler sets for the programs that it starts.
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

// Returns nullptr if no profiler is attached to this process, and in builds without NVTX's headers.
// Names the streams, and at the first range all threads of the process whose names begin with
// "rp-".
[[nodiscard]] std::unique_ptr<ProfilerRanges> make_nvtx_ranges(const std::vector<NamedStream>& streams);

}  // namespace rp
