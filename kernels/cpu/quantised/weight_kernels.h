// kernels/cpu/quantised/weight_kernels.h
// Expands quantised weights on the CPU, and quantises weights. Every instruction set computes the
// same bits (except those of NaNs), and results do not depend on how a call is divided.
#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "kernels/quantised_weights.h"

namespace rp::models {

// The arguments of a quantiser: the elements of a matrix, and where its parts are written.
struct QuantiseMatrix {
  WeightFormat format = WeightFormat::kNf4;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const void* values = nullptr;  // [rows, columns]
  std::uint8_t* codes = nullptr;
  void* scales = nullptr;  // fp32, or bytes
  float* nested_scales = nullptr;
  float* offset = nullptr;
  float* scratch = nullptr;  // kNf4Double: a float for each scale
};

// One table per instruction set. A dtype is a working dtype (common/dtype.h); any other aborts.
struct WeightKernels {
  const char* name;
  // Writes the elements [begin, end) of the matrix whose elements are `values`, [rows, columns].
  void (*expand)(DType, const QuantisedMatrix&, void* values, std::int64_t begin, std::int64_t end);
  // Returns false if an element is not finite; then the parts have undefined contents.
  bool (*quantise)(DType, const QuantiseMatrix&);
};

extern const WeightKernels kPortableWeightKernels;
extern const WeightKernels kAvx2WeightKernels;    // x86-64 only
extern const WeightKernels kAvx512WeightKernels;  // x86-64 only

// Returns the fastest table that this processor can run.
[[nodiscard]] const WeightKernels& weight_kernels();

// Returns all tables that this processor can run, the portable one first.
[[nodiscard]] std::span<const WeightKernels* const> usable_weight_kernels();

// Writes the elements [begin, end) of a parameter, counted over all of its matrices, to `values`,
// [matrices, rows, columns] in `dtype`. Threads may share a parameter by dividing its elements.
void expand_weights(const WeightKernels& kernels, DType dtype, const QuantisedWeights& weights, void* values,
                    std::int64_t begin, std::int64_t end);

// Quantises one matrix, `values` [rows, columns] in `dtype`, into its place in `bytes`, which has
// the layout of `shape`. Threads may share a parameter by its matrices. Returns false if an element
// is infinite or NaN; then the matrix has undefined contents. The rules:
// - NF4: those of bitsandbytes 0.50.2. A scale is the largest magnitude of the block, and a code is
//   that of the nearest value, the lower one in a tie. Double quantisation does the same with the
//   nested map for (scale - offset); the offset is the mean of the scales, summed in fp64.
// - MXFP4: a scale is 2^(floor(log2(largest magnitude)) - 2), at least 2^-127; a code is that of the
//   nearest value, the even code in a tie.
// - FP8: a scale is the largest magnitude / 448, or 1 if that is 0; a code is that of the nearest
//   value to element / scale, the even code in a tie.
[[nodiscard]] bool quantise_weights(const WeightKernels& kernels, DType dtype, const void* values,
                                    const QuantisedShape& shape, std::int64_t matrix, std::byte* bytes);

}  // namespace rp::models
