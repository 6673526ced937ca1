// optimizer/kernels.h
// The inner loops behind update.h, once per instruction set, all with the same result bit for bit. Internal: only
// update.cc, its tests and benchmarks look in here.
#pragma once

#include <cstddef>

#include "optimizer/update.h"

namespace rp {

// Elements of a partial sum that are added side by side.
inline constexpr std::size_t kNumSquareLanes = 16;

// Each function works on the elements [begin, end).
struct Kernels {
  const char* name;
  void (*update)(const BlockState&, const BlockGradients&, const UpdateStep&, std::size_t begin, std::size_t end);
  void (*skip)(const BlockState&, std::size_t begin, std::size_t end);
  void (*add)(float* sum, const BlockGradients&, std::size_t begin, std::size_t end);
  // Adds the square of element i to lanes[(i - begin) % kNumSquareLanes].
  void (*squares)(const BlockGradients&, std::size_t begin, std::size_t end, double* lanes);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;    // needs AVX2 and F16C
extern const Kernels kAvx512Kernels;  // needs AVX-512 F, BW, DQ and VL
#endif

// Those that this processor can run, the fastest first.
[[nodiscard]] std::span<const Kernels* const> usable_kernels();

}  // namespace rp
