// tests/random/drawn_weights.h
// The initial weights of a random decoder layer. Frozen weights may be quantised in the store; the
// reference has the same weights expanded, one by one, by the definition of the format.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model_files/layer_tensors.h"

namespace rp::test {

struct DrawnWeights {
  std::vector<LayerTensor> tensors;
  NormKind norm = NormKind::kRounded;
  std::uint64_t seed = 0;

  // Writes the initial value of a parameter. If it is quantised, `value` may be of bytes, or fp32, and
  // then has the weight's shape: what the bytes expand to. Every value is random, including LoRA
  // pairs, whatever these begin with in a training run, so that all gradients have values.
  void initialize(const std::string& parameter, const at::Tensor& value) const;

  // Counts the quantised weights by format, such as " 3 in nf4". Empty if there are none.
  [[nodiscard]] std::string formats() const;
};

}  // namespace rp::test
