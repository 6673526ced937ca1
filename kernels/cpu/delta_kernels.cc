#include "kernels/cpu/delta_kernels.h"

#include "kernels/cpu/instruction_set.h"

namespace rp::models {

std::span<const DeltaKernels* const> usable_delta_kernels() {
#if defined(__x86_64__)
  static constexpr std::array<const DeltaKernels*, 3> kTables = {&kPortableDeltaKernels, &kAvx2DeltaKernels,
                                                                 &kAvx512DeltaKernels};
#else
  static constexpr std::array<const DeltaKernels*, 1> kTables = {&kPortableDeltaKernels};
#endif
  return usable_of(kTables);
}

const DeltaKernels& delta_kernels() {
  static const DeltaKernels& best = *usable_delta_kernels().back();
  return best;
}

}  // namespace rp::models
