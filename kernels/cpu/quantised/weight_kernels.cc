#include "kernels/cpu/quantised/weight_kernels.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/instruction_set.h"

namespace rp::models {

std::span<const WeightKernels* const> usable_weight_kernels() {
#if defined(__x86_64__)
  static constexpr std::array<const WeightKernels*, 3> kTables = {&kPortableWeightKernels, &kAvx2WeightKernels,
                                                                  &kAvx512WeightKernels};
#else
  static constexpr std::array<const WeightKernels*, 1> kTables = {&kPortableWeightKernels};
#endif
  return usable_of(kTables);
}

const WeightKernels& weight_kernels() {
  static const WeightKernels& best = *usable_weight_kernels().back();
  return best;
}

void expand_weights(const WeightKernels& kernels, DType dtype, const QuantisedWeights& weights, void* values,
                    std::int64_t begin, std::int64_t end) {
  const std::int64_t elements = weights.shape.num_elements();
  const std::int64_t matrix_bytes = elements * static_cast<std::int64_t>(dtype_bytes(dtype));
  while (begin < end) {
    const std::int64_t matrix = begin / elements, first = matrix * elements;
    const std::int64_t stop = std::min(end - first, elements);
    kernels.expand(dtype, matrix_of(weights, matrix), static_cast<std::byte*>(values) + matrix * matrix_bytes,
                   begin - first, stop);
    begin = first + stop;
  }
}

bool quantise_weights(const WeightKernels& kernels, DType dtype, const void* values, const QuantisedShape& shape,
                      std::int64_t matrix, std::byte* bytes) {
  const QuantisedLayout layout(shape);
  auto* nested = reinterpret_cast<float*>(bytes + layout.nested_scales);
  std::vector<float> scratch(static_cast<std::size_t>(shape.num_offsets() * shape.num_scales()));
  return kernels.quantise(dtype,
                          {.format = shape.format,
                           .rows = shape.rows,
                           .columns = shape.columns,
                           .values = values,
                           .codes = reinterpret_cast<std::uint8_t*>(bytes) + matrix * shape.code_bytes(),
                           .scales = bytes + layout.scales + matrix * shape.scale_bytes(),
                           .nested_scales = nested + matrix * shape.num_nested_scales(),
                           .offset = reinterpret_cast<float*>(bytes + layout.offsets) + matrix * shape.num_offsets(),
                           .scratch = scratch.data()});
}

}  // namespace rp::models
