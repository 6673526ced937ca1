// model_files/weights/quantised_tensors.h
// Copies weights that files have quantised into parameters with the layout of
// kernels/quantised_weights.h, without expanding them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quantised_weights.h"
#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/weight_files.h"

namespace rp {

// A matrix of a quantised parameter in memory. `bytes` is the whole parameter, with the layout
// QuantisedLayout(shape).
struct MatrixPlace {
  QuantisedShape shape;
  std::int64_t matrix = 0;
  std::byte* bytes = nullptr;
};

// Reads the part that `tensor` has of a matrix. `expert` is the expert of a tensor of all experts, and
// otherwise 0. Scales in bf16 become fp32. Throws rp::Error (kBadInput) naming the file and the stored
// tensor if a scale or a code is not a finite number. REQUIRES: to.shape.format is the tensor's format;
// `part` is one of its parts; check_weights() found no fault.
void read_quantised_matrix(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
                           std::int64_t expert, const MatrixPlace& to);

// Does the same for all matrices of the parameter `bytes` that the tensor has.
void read_quantised_part(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
                         const QuantisedShape& shape, std::byte* bytes);

// Returns a number that no expanded value of a matrix exceeds in magnitude.
[[nodiscard]] double bound_of_values(const QuantisedWeights& weights, std::int64_t matrix);

}  // namespace rp
