#include "kernels/cpu/update_kernels.h"

#include "kernels/cpu/instruction_set.h"

namespace rp {

std::span<const UpdateKernels* const> usable_update_kernels() {
#if defined(__x86_64__)
  static constexpr std::array<const UpdateKernels*, 3> kTables = {&kPortableUpdateKernels, &kAvx2UpdateKernels,
                                                                  &kAvx512UpdateKernels};
#else
  static constexpr std::array<const UpdateKernels*, 1> kTables = {&kPortableUpdateKernels};
#endif
  return usable_of(kTables);
}

const UpdateKernels& update_kernels() {
  static const UpdateKernels& best = *usable_update_kernels().back();
  return best;
}

}  // namespace rp
