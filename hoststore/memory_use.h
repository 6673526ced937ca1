// hoststore/memory_use.h
// Lists the purposes of a worker's memory on its device, and how much memory each one occupies. The
// device counts it, and the worker reports it to the coordinator with each completion. Byte format:
// docs/formats/control.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/indexed.h"
#include "common/shm_safe.h"

namespace rp {

enum class MemoryUse : std::uint32_t {
  kWeights,       // of the current stage and the next one
  kAccumulators,  // fp32 gradients of a stage
  kGradients,     // rounded gradients of stages, for the download
  kInputs,        // inputs of microbatches
  kOutputs,       // outputs of microbatches; a LibTorch tensor counts here once it is handed to the download
  kTensors,       // LibTorch's other tensors: data saved for a backward pass, workspace, buffers of layers
  kResults,       // losses, sums, times
};
inline constexpr std::size_t kMemoryUses = 7;

// Returns the purpose in words, as in "3.2 GiB for fp32 gradients".
[[nodiscard]] const char* memory_use_name(MemoryUse use);

using BytesByUse = IndexedArray<MemoryUse, std::uint64_t, kMemoryUses>;

// The memory of one worker's device since the worker's start. All zeros on an emulated device.
struct DeviceMemoryPeaks {
  using ShmFormat = void;
  std::uint64_t limit_bytes = 0;     // the maximum that the worker may use; 0 if the device's memory is the host's
  std::uint64_t peak_bytes = 0;      // of all purposes together
  std::uint64_t resident_bytes = 0;  // tensors and results that exist between two tasks
  BytesByUse peak_by_use{};          // different purposes may reach their peaks at different times
  // Bytes of the store that were copied through a pinned buffer because they were not registered.
  std::uint64_t staged_bytes = 0;
  bool operator==(const DeviceMemoryPeaks&) const = default;
};
static_assert(sizeof(DeviceMemoryPeaks) == 88 && ShmSafe<DeviceMemoryPeaks>);

}  // namespace rp
