#include "kernels/cpu/instruction_set.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rp {

#if defined(__x86_64__)

namespace {

// clang's __builtin_cpu_supports() does not know F16C.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

InstructionSet best_instruction_set() {
  static const InstructionSet best = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !has_f16c()) return InstructionSet::kPortable;
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has_avx512 ? InstructionSet::kAvx512 : InstructionSet::kAvx2;
  }();
  return best;
}

#else

InstructionSet best_instruction_set() { return InstructionSet::kPortable; }

#endif

}  // namespace rp
