#include "tests/reference/whole_batch.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <memory>

#include "models/recompute_context.h"
#include "tests/reference/tied_parameters.h"

namespace rp::reference {

namespace {

Tensors in_dtype(Tensors tensors, at::ScalarType dtype) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined() && at::isFloatingType(tensor.scalar_type())) tensor = tensor.detach().to(dtype);
  }
  return tensors;
}

}  // namespace

std::vector<at::Tensor> whole_batch_gradients(const Model& model, const std::vector<Loss>& losses,
                                              const std::vector<WholeRound>& rounds, at::ScalarType dtype) {
  const std::map<Place, Place> first = first_uses(model);
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<std::vector<at::Tensor>> leaves;  // the uses of each stored parameter
  std::map<Place, std::size_t> stored_at;
  for (int i = 0; i < model.num_layers(); ++i) {
    const LayerSpec& spec = model.layers()[i];
    layers.push_back(spec.make());
    for (const NamedParameter& parameter : layers.back()->parameters()) {
      const auto tied = first.find({i, parameter.name});
      const auto [place, is_new] =
          stored_at.try_emplace(tied == first.end() ? Place{i, parameter.name} : tied->second, leaves.size());
      if (is_new) leaves.emplace_back();
      std::vector<at::Tensor>& uses = leaves[place->second];
      const at::Tensor initial = uses.empty() ? parameter.value.detach().clone() : uses.front().detach();
      if (uses.empty() && spec.initialize) spec.initialize(parameter.name, initial);
      parameter.value.set_data(parameter.keeps_dtype ? initial : initial.to(model.dtype()).to(dtype));
      uses.push_back(parameter.value);
    }
    layers.back()->begin_task();
  }
  for (const WholeRound& whole : rounds) {
    Tensors values = in_dtype(whole.round.inputs, dtype);
    for (auto& layer : layers) {
      RecomputeContext context;
      const RecomputeScope scope(context);
      values = layer->forward(values);
    }
    Tensors roots;
    for (const at::Tensor& number : losses.at(whole.loss).function(values, in_dtype(whole.round.arguments, dtype))) {
      if (number.requires_grad()) roots.push_back(number);
    }
    if (!roots.empty()) torch::autograd::backward(roots);
  }
  std::vector<at::Tensor> gradients;
  for (const std::vector<at::Tensor>& uses : leaves) {
    if (!uses.front().requires_grad()) continue;
    gradients.push_back(at::zeros(uses.front().sizes(), at::kDouble));
    for (const at::Tensor& leaf : uses) {
      if (leaf.grad().defined()) gradients.back() += leaf.grad();
    }
  }
  return gradients;
}

double relative_error(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a.at(i) - b[i]).square().sum().item<double>();
    size += b[i].square().sum().item<double>();
  }
  return size > 0 ? std::sqrt(difference / size) : 0;
}

}  // namespace rp::reference
