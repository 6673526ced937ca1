#include "models/layer_parameters.h"

namespace rp::models {

LayerParameters::LayerParameters(const LayerTensors& layer, const LoraSettings& lora, at::ScalarType dtype)
    : lora_(lora) {
  for (const LayerTensor& tensor : layer.tensors) {
        const at::ScalarType stored = tensor.is_buffer ? at::kFloat : dtype;
    all_.push_back({.name = tensor.name,
                    .value = placeholder(tensor.shape, stored).requires_grad_(tensor.is_trained),
                    .keeps_dtype = tensor.is_buffer});
    by_name_.emplace(tensor.name, all_.back().value);
  }
}

at::Tensor LayerParameters::tensor(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? at::Tensor() : found->second;
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
