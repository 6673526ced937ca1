// hoststore/memory_use.h
// What a worker's memory on its device is for, and how much each purpose takes: counted by the device, told to the
// coordinator with each completion. Byte format: docs/formats/control.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/shm_safe.h"

namespace rp {

enum class MemoryUse : std::uint32_t {
  kWeights,       // of the stages that compute and come next
  kAccumulators,  // gradients of a stage in fp32
  kGradients,     // of stages, rounded, for the download
  kInputs,        // of microbatches
  kOutputs,       // likewise: LibTorch's tensors from when they are given to the download
  kTensors,       // LibTorch's others: what a backward needs of its forward, workspace, buffers of layers
  kResults,       // losses, sums, times
};
inline constexpr std::size_t kMemoryUses = 7;

// As in "3.2 GiB for fp32 gradients".
[[nodiscard]] const char* memory_use_name(MemoryUse use);

using BytesByUse = std::array<std::uint64_t, kMemoryUses>;

// Of one worker since its start. All zeros on an emulated device.
struct DeviceMemoryPeaks {
  using ShmFormat = void;
  std::uint64_t limit_bytes = 0;     // what the worker has at most; 0 where its memory is the host's
  std::uint64_t peak_bytes = 0;      // all purposes together
  std::uint64_t resident_bytes = 0;  // tensors and results between two tasks
  BytesByUse peak_by_use{};          // each at its own time
  std::uint64_t staged_bytes = 0;    // of the store, copied by way of a pinned buffer where they were not registered
  bool operator==(const DeviceMemoryPeaks&) const = default;
};
static_assert(sizeof(DeviceMemoryPeaks) == 88 && ShmSafe<DeviceMemoryPeaks>);

}  // namespace rp
