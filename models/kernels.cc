#include "models/kernels.h"

#include <array>

namespace rp::models {

std::span<const Kernels* const> usable_kernels() {
#if defined(__x86_64__)
  static const std::array<const Kernels*, 3> tables = {&kPortableKernels, &kAvx2Kernels, &kAvx512Kernels};
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return std::span(tables).first(!has_avx2 ? 1 : has_avx512 ? 3 : 2);
#else
  static const std::array<const Kernels*, 1> tables = {&kPortableKernels};
  return tables;
#endif
}

const Kernels& kernels() {
  static const Kernels& best = *usable_kernels().back();
  return best;
}

}  // namespace rp::models
