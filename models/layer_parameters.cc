#include "models/layer_parameters.h"

#include "models/layers/quantised_weights.h"

namespace rp::models {

NamedParameter stored_parameter(const LayerTensor& tensor, at::ScalarType dtype) {
  if (tensor.format)
    return {.name = tensor.name, .value = placeholder({tensor.quantised_bytes()}, at::kByte), .keeps_dtype = true};
  const at::ScalarType stored = tensor.is_fp32 ? at::kFloat : dtype;
  return {.name = tensor.name,
          .value = placeholder(tensor.shape, stored).requires_grad_(tensor.is_trained),
          .keeps_dtype = tensor.is_fp32,
          .is_correction = tensor.is_correction && tensor.is_trained};
}

LayerParameters::LayerParameters(const LayerTensors& layer, const LoraSettings& lora, at::ScalarType dtype)
    : dtype_(dtype), lora_(lora) {
  for (const LayerTensor& tensor : layer.tensors) {
    all_.push_back(stored_parameter(tensor, dtype));
    at::Tensor value = all_.back().value;
    if (tensor.format) {
      const at::Tensor bytes = value;
      value = placeholder(tensor.shape, dtype).requires_grad_(false);
      quantised_.push_back({.bytes = bytes, .shape = tensor.quantised_shape(), .sizes = tensor.shape, .value = value});
    }
    by_name_.emplace(tensor.name, value);
  }
}

at::Tensor LayerParameters::tensor(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? at::Tensor() : found->second;
}

void LayerParameters::begin_task() {
  for (const Quantised& weight : quantised_)
    weight.value.set_data(expanded(weight.bytes, weight.shape, weight.sizes, dtype_));
}

void LayerParameters::end_task() {
  for (const Quantised& weight : quantised_)
    weight.value.set_data(placeholder(weight.sizes, dtype_).requires_grad_(false));
}

LinearWeights LayerParameters::linear(const std::string& name) const {
  return {.weight_oi = tensor(name + ".weight"),
          .bias_o = tensor(name + ".bias"),
          .lora = {.a_ri = tensor(name + ".lora_A.weight"),
                   .b_or = tensor(name + ".lora_B.weight"),
                   .magnitude_o = tensor(name + ".lora_magnitude_vector"),
                   .scale = lora_.scale(),
                   .dropout = lora_.dropout}};
}

}  // namespace rp::models
