// kernels/cpu/update_kernels.h
// The inner loops behind optimizer/update.h, once per instruction set, all with the same result bit for bit. Internal:
// only optimizer/update.cc, its tests and benchmarks look in here.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/update_arguments.h"

namespace rp {

// Elements of a partial sum that are added side by side.
inline constexpr std::size_t kNumSquareLanes = 16;

// Each function works on the elements [begin, end).
struct UpdateKernels {
  const char* name;
  void (*update)(const GroupState&, const GroupGradients&, const UpdateStep&, std::size_t begin, std::size_t end);
  void (*skip)(const GroupState&, std::size_t begin, std::size_t end);
  void (*add)(float* sum, const GroupGradients&, std::size_t begin, std::size_t end);
  // Adds the square of element i to lanes[(i - begin) % kNumSquareLanes].
  void (*squares)(const GroupGradients&, std::size_t begin, std::size_t end, double* lanes);
};

extern const UpdateKernels kPortableUpdateKernels;
extern const UpdateKernels kAvx2UpdateKernels;  // these two on x86-64 only
extern const UpdateKernels kAvx512UpdateKernels;

// The fastest table that this processor can run.
[[nodiscard]] const UpdateKernels& update_kernels();

// All tables that this processor can run, the portable one first.
[[nodiscard]] std::span<const UpdateKernels* const> usable_update_kernels();

}  // namespace rp
