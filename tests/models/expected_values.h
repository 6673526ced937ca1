// tests/models/expected_values.h
// What several tests compare with: the loss by whole logits, and a model run layer by layer.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "models/causal_lm_loss.h"
#include "tests/models/golden.h"

namespace rp::models {

inline at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape, at::kFloat).to(dtype).requires_grad_(true);
}

// Inputs of the loss.
struct LossCase {
  at::Tensor hidden_bth, weight_vh, labels_bt;
};

inline at::Tensor our_loss(const LossCase& c, double divisor, std::int64_t chunk_tokens = 0) {
  return causal_lm_loss_of({c.hidden_bth, c.weight_vh}, {c.labels_bt, at::scalar_tensor(divisor)}, chunk_tokens);
}

// {loss, gradient of hidden, gradient of weight} with whole logits, in fp64; the gradients times `factor`.
inline std::vector<at::Tensor> plain_loss(const LossCase& c, double divisor, double factor = 1) {
  const at::Tensor hidden = c.hidden_bth.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor weight = c.weight_vh.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor logits = at::linear(hidden, weight).flatten(0, 1);
  const at::Tensor loss = at::cross_entropy_loss(logits, c.labels_bt.flatten(), {}, at::Reduction::Sum, -100) / divisor;
  torch::autograd::backward({loss * factor});
  return {loss.detach(), hidden.grad(), weight.grad()};
}

// The layers of `model` with weights and gradients of their own.
inline std::vector<BoundLayer> bound_layers(const Model& model, std::int64_t shift = 0) {
  std::vector<BoundLayer> layers;
  for (const LayerSpec& spec : model.layers()) layers.emplace_back(spec, model.dtype(), shift);
  return layers;
}

// One microbatch through all layers and the loss, each layer with a graph of its own, as the runtime runs it. Gradients stay
// with the layers; returns the loss. `scale` multiplies the gradients within.
inline at::Tensor run_layer_by_layer(std::vector<BoundLayer>& layers, const Tensors& first_inputs, const Tensors& arguments,
                                     double scale = 1) {
  std::vector<Tensors> inputs = {first_inputs};
  const auto detached = [](const Tensors& tensors) {
    Tensors result;
    for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach());
    return result;
  };
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) inputs.push_back(detached(layers[i](inputs[i])));
  // Only the first tensor between two layers has a gradient.
  at::Tensor grad;
  at::Tensor loss;
  for (std::size_t i = layers.size(); i-- > 0;) {
    Tensors own = detached(inputs[i]);
    if (i > 0) own[0].requires_grad_(true);
    const Tensors outputs = layers[i](own);
    if (i + 1 == layers.size()) {
      loss = causal_lm_loss().function(outputs, arguments).at(0);
      torch::autograd::backward({scale == 1 ? loss : loss * scale});
    } else {
      torch::autograd::backward({outputs[0]}, {grad});
    }
    grad = own[0].grad();
  }
  return loss.detach();
}

}  // namespace rp::models
