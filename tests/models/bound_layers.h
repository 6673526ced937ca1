// tests/models/bound_layers.h
// Binds layers to weights as the runtime does, and compares what they compute.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model_files/weights/safetensors.h"
#include "models/layers/causal_lm_loss.h"
#include "models/layers/scalar_type.h"
#include "models/recompute_context.h"
#include "roundpipe/model.h"

namespace rp::models {

// Reads all tensors of a safetensors file.
inline std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, info] : file.tensors()) {
    const at::Tensor value = at::empty(info.shape, scalar_type_of(info.dtype));
    file.read(name, value.mutable_data_ptr(), info.bytes);
    result.emplace(name, value);
  }
  return result;
}

// A layer whose parameters are views of one flat array of weights, and whose gradients are
// accumulated in views of one flat fp32 array.
class BoundLayer {
 public:
  // `shift` elements (a multiple of 32, which is 64 bytes) are left free before the first parameter
  // of each array.
  BoundLayer(const LayerSpec& spec, at::ScalarType dtype, std::int64_t shift = 0, at::Device device = at::kCPU)
      : layer_(spec.make()) {
    std::int64_t elements = shift;
    for (const NamedParameter& parameter : layer_->parameters())
      elements += parameter.keeps_dtype ? 0 : padded(parameter.value.numel());
    const auto options = at::TensorOptions().device(device);
    const at::Tensor weights = at::zeros({elements}, options.dtype(dtype));
    const at::Tensor gradients = at::zeros({elements}, options.dtype(at::kFloat));
    std::int64_t first = shift;
    for (NamedParameter& parameter : layer_->parameters()) {
      if (parameter.keeps_dtype) {
        const at::Tensor value = at::zeros(parameter.value.sizes(), parameter.value.scalar_type());
        spec.initialize(parameter.name, value);
        parameter.value.set_data(value.to(device));
        continue;
      }
      const std::int64_t count = parameter.value.numel();
      const auto view = [&](const at::Tensor& array) {
        return array.narrow(0, first, count).view(parameter.value.sizes());
      };
      const at::Tensor initial = at::zeros(parameter.value.sizes(), at::kFloat);
      spec.initialize(parameter.name, initial);
      view(weights).copy_(initial);
      parameter.value.set_data(view(weights));
      parameter.value.set_grad_dtype(at::kFloat);
      parameter.value.mutable_grad() = view(gradients);
      first += padded(count);
    }
    weights_ = weights;
    gradients_ = gradients;
    layer_->begin_task();
  }

  Tensors operator()(const Tensors& inputs) {
    RecomputeContext context;  // for a forward pass that will not be repeated
    const RecomputeScope scope(context);
    return layer_->forward(inputs);
  }
  [[nodiscard]] std::vector<NamedParameter> parameters() { return layer_->parameters(); }
  [[nodiscard]] const at::Tensor& gradients() const { return gradients_; }

 private:
  static std::int64_t padded(std::int64_t elements) { return (elements + 31) / 32 * 32; }

  std::unique_ptr<Layer> layer_;
  at::Tensor weights_;
  at::Tensor gradients_;
};

// Makes the layers of `model`, each with weights and gradients of its own.
inline std::vector<BoundLayer> bound_layers(const Model& model, std::int64_t shift = 0, at::Device device = at::kCPU) {
  std::vector<BoundLayer> layers;
  for (const LayerSpec& spec : model.layers()) layers.emplace_back(spec, model.dtype(), shift, device);
  return layers;
}

// Runs one microbatch through all layers and the loss, with one graph for each layer, as the
// runtime does. The gradients remain in the layers. Returns the numbers of the loss. The gradients
// are multiplied by `scale`.
inline Tensors losses_layer_by_layer(std::vector<BoundLayer>& layers, const Tensors& first_inputs,
                                     const Tensors& arguments, const CausalLmLossSettings& settings = {},
                                     double scale = 1) {
  std::vector<Tensors> inputs = {first_inputs};
  const auto detached = [](const Tensors& tensors) {
    Tensors result;
    for (const at::Tensor& tensor : tensors) result.push_back(tensor.defined() ? tensor.detach() : tensor);
    return result;
  };
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) inputs.push_back(detached(layers[i](inputs[i])));
  Tensors grads, losses;
  for (std::size_t i = layers.size(); i-- > 0;) {
    Tensors own = detached(inputs[i]);
    for (at::Tensor& tensor : own) {
      if (i > 0 && tensor.defined() && tensor.is_floating_point()) tensor.requires_grad_(true);
    }
    const Tensors outputs = layers[i](own);
    if (i + 1 == layers.size()) {
      losses = causal_lm_loss(settings).function(outputs, arguments);
      at::Tensor sum = losses.at(0);
      for (std::size_t k = 1; k < losses.size(); ++k) sum = sum + losses[k];
      torch::autograd::backward({scale == 1 ? sum : sum * scale});
    } else {
      // An output that does not require a gradient is frozen. One without a gradient is not used by
      // the layers above.
      std::vector<at::Tensor> roots, root_grads;
      for (std::size_t k = 0; k < outputs.size(); ++k) {
        if (!outputs[k].defined() || !outputs[k].requires_grad() || !grads[k].defined()) continue;
        roots.push_back(outputs[k]);
        root_grads.push_back(grads[k]);
      }
      if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    }
    grads.clear();
    for (const at::Tensor& tensor : own)
      grads.push_back(tensor.defined() && tensor.is_floating_point() ? tensor.grad() : at::Tensor());
  }
  for (at::Tensor& loss : losses) loss = loss.detach();
  return losses;
}

// Returns the first number of losses_layer_by_layer().
inline at::Tensor run_layer_by_layer(std::vector<BoundLayer>& layers, const Tensors& first_inputs,
                                     const Tensors& arguments, double scale = 1) {
  return losses_layer_by_layer(layers, first_inputs, arguments, {}, scale).at(0);
}

// Returns max |a - b| / max |b|.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e30;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() /
         std::max(1e-30, b.to(at::kDouble).abs().max().item<double>());
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace rp::models
