// kernels/cpu/update_kernels.h
// The inner loops of optimizer/update.h, one table per instruction set, all with the same results
// bit for bit. Internal: used only by optimizer/update.cc, its tests and benchmarks.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/update_arguments.h"

namespace rp {

// The number of partial sums that are added in parallel.
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
extern const UpdateKernels kAvx2UpdateKernels;    // x86-64 only
extern const UpdateKernels kAvx512UpdateKernels;  // x86-64 only

// Returns the fastest table that this processor can run.
[[nodiscard]] const UpdateKernels& update_kernels();

// Returns all tables that this processor can run, the portable one first.
[[nodiscard]] std::span<const UpdateKernels* const> usable_update_kernels();

}  // namespace rp
