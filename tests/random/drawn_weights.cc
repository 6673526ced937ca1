#include "tests/random/drawn_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/check.h"
#include "common/text.h"
#include "models/layers/quantised_weights.h"
#include "tests/kernels/quantised/defined_values.h"
#include "tests/random/draw.h"

namespace rp::test {

namespace {

at::Tensor random_value(const LayerTensor& tensor, NormKind norm, Draw draw) {
  const at::Tensor normal = draw.normal(tensor.shape);
  if (tensor.name.ends_with("lora_magnitude_vector")) return normal.abs() + 0.5;
  if (tensor.name.ends_with("norm.weight")) {
    const bool is_around_zero = norm == NormKind::kOffset && !tensor.name.starts_with("linear_attn.");
    return normal * 0.1 + (is_around_zero ? 0 : 1);
  }
  return normal * (normal.dim() == 1 ? 0.3 : 1 / std::sqrt(static_cast<double>(normal.size(-1))));
}

at::Tensor quantised(const LayerTensor& tensor, const at::Tensor& value) {
  const QuantisedShape shape = tensor.quantised_shape();
  const at::Tensor matrices = value.view({shape.matrices, shape.rows, shape.columns});
  const at::Tensor bytes = at::zeros({tensor.quantised_bytes()}, at::kByte);
  for (std::int64_t matrix = 0; matrix < shape.matrices; ++matrix) {
    const bool is_finite = models::quantise(matrices[matrix], shape, matrix, bytes);
    RP_ASSERT(is_finite);
  }
  return bytes;
}

at::Tensor expanded(const LayerTensor& tensor, const at::Tensor& bytes) {
  return at::tensor(defined_values({tensor.quantised_shape(), static_cast<const std::byte*>(bytes.const_data_ptr())}))
      .view(tensor.shape);
}

}  // namespace

void DrawnWeights::initialize(const std::string& parameter, const at::Tensor& value) const {
  const auto tensor = std::ranges::find(tensors, parameter, &LayerTensor::name);
  RP_ASSERT(tensor != tensors.end());
  const auto place = static_cast<std::uint64_t>(tensor - tensors.begin());
  const at::Tensor drawn = random_value(*tensor, norm, Draw(seed + 1 + place));
  if (!tensor->format) {
    value.copy_(drawn);
    return;
  }
  const at::Tensor bytes = quantised(*tensor, drawn);
  value.copy_(value.scalar_type() == at::kByte ? bytes : expanded(*tensor, bytes));
}

std::string DrawnWeights::formats() const {
  static constexpr const char* kNames[] = {"nf4", "nf4-double", "mxfp4", "fp8-blocks", "fp8-tensor"};
  std::map<std::string, int> counts;
  for (const LayerTensor& tensor : tensors) {
    if (tensor.format) ++counts[kNames[static_cast<int>(*tensor.format)]];
  }
  std::string text;
  for (const auto& [name, count] : counts) text += cat(" ", count, " in ", name);
  return text;
}

}  // namespace rp::test
