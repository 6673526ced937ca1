#include "kernels/cpu/layer_kernels.h"

#include "kernels/cpu/instruction_set.h"

namespace rp::models {

std::span<const LayerKernels* const> usable_layer_kernels() {
#if defined(__x86_64__)
  static constexpr std::array<const LayerKernels*, 3> kTables = {&kPortableLayerKernels, &kAvx2LayerKernels,
                                                                 &kAvx512LayerKernels};
#else
  static constexpr std::array<const LayerKernels*, 1> kTables = {&kPortableLayerKernels};
#endif
  return usable_of(kTables);
}

const LayerKernels& layer_kernels() {
  static const LayerKernels& best = *usable_layer_kernels().back();
  return best;
}

}  // namespace rp::models
