#include "tests/reference/reference_loop.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "common/text.h"

namespace rp::reference {

namespace {

// A stored parameter: its state, and one leaf for each place where the model uses it, in layer order.
struct Stored {
  Parameter state;
  std::vector<at::Tensor> uses;
  at::Tensor late_working;  // the working copy of one step before
  std::vector<at::Tensor> use_sums;  // fp32, of each use: the rounds of the step in order
  at::Tensor gradient;               // fp32: the uses' sums, added in layer order
};

using Layers = std::vector<std::unique_ptr<Layer>>;

std::vector<Stored> store_parameters(const Model& model, Layers& layers) {
  std::map<std::string, std::string> first_use;
  for (const auto& [first, second] : model.ties()) {
    const std::string name = cat(first.layer, '.', first.parameter);
    const auto earlier = first_use.find(name);
    first_use[cat(second.layer, '.', second.parameter)] = earlier == first_use.end() ? name : earlier->second;
  }
  std::vector<Stored> stored;
  std::map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const NamedParameter& parameter : layers[i]->parameters()) {
      const std::string name = cat(i, '.', parameter.name);
      if (const auto tied = first_use.find(name); tied != first_use.end()) {
        Stored& first = stored[place.at(tied->second)];
        first.uses.push_back(parameter.value);
        first.use_sums.push_back(at::zeros_like(first.state.master));
        continue;
      }
      place[name] = stored.size();
      const at::Tensor master = parameter.value.detach().to(at::kFloat).clone(at::MemoryFormat::Contiguous);
      if (model.layers()[i].initialize) model.layers()[i].initialize(parameter.name, master);
      const at::Tensor working = master.to(model.dtype(), /*non_blocking=*/false, /*copy=*/true);
      stored.push_back({{name, master, at::zeros_like(master), at::zeros_like(master), working}, {parameter.value},
                        working.clone(), {at::zeros_like(master)}, at::zeros_like(master)});
    }
  }
  return stored;
}

// Adds a round's gradients to the step's sums; returns the round's loss.
double run_round(Layers& layers, const Loss& loss, const Round& round, std::vector<Stored>& stored,
                 const Settings& settings) {
  for (Stored& parameter : stored) {
    for (at::Tensor& use : parameter.uses) {
      use.set_data(settings.asynchronous ? parameter.late_working : parameter.state.working);
      use.set_grad_dtype(at::kFloat);
      use.mutable_grad() = at::zeros_like(parameter.state.master);
    }
  }
  double total = 0;
  for (int i = 0; i < settings.num_microbatches; ++i) {
    Tensors values = microbatch(round.inputs, i, settings.num_microbatches);
    for (auto& layer : layers) values = layer->forward(values);
    const Tensors parts = loss.function(values, microbatch(round.arguments, i, settings.num_microbatches));
    torch::autograd::backward(parts);
    for (const at::Tensor& part : parts) total += part.item<double>();
  }
  for (Stored& parameter : stored) {
    for (std::size_t i = 0; i < parameter.uses.size(); ++i) {
      parameter.use_sums[i] += parameter.uses[i].grad().to(parameter.state.working.scalar_type()).to(at::kFloat);
    }
  }
  return total;
}

// The step's gradients; the sums begin anew.
void add_uses(std::vector<Stored>& stored) {
  for (Stored& parameter : stored) {
    parameter.gradient.zero_();
    for (at::Tensor& sum : parameter.use_sums) {
      parameter.gradient += sum;
      sum.zero_();
    }
  }
}

double grad_norm(const std::vector<Stored>& stored) {
  double squares = 0;
  for (const Stored& parameter : stored) {
    const float* g = parameter.gradient.const_data_ptr<float>();
    for (std::int64_t i = 0; i < parameter.gradient.numel(); ++i) squares += static_cast<double>(g[i]) * g[i];
  }
  return std::sqrt(squares);
}

// One step of AdamW for one parameter; the order of optimizer/update.h, one rounding per operation.
void update(Stored& parameter, const AdamW& rule, double step, float gradient_scale) {
  const auto decay = static_cast<float>(1.0 - rule.learning_rate * rule.weight_decay);
  const double m_weight = 1.0 - rule.beta1;
  const bool from_gradient = m_weight >= 0.5;
  const auto weight = static_cast<float>(from_gradient ? m_weight - 1.0 : m_weight);
  const auto beta2 = static_cast<float>(rule.beta2), v_weight = static_cast<float>(1.0 - rule.beta2);
  const auto v_correction = static_cast<float>(std::sqrt(1.0 - std::pow(rule.beta2, step)));
  const auto epsilon = static_cast<float>(rule.epsilon);
  const auto step_size = static_cast<float>(-rule.learning_rate / (1.0 - std::pow(rule.beta1, step)));
  float* p = parameter.state.master.mutable_data_ptr<float>();
  float* m = parameter.state.moment1.mutable_data_ptr<float>();
  float* v = parameter.state.moment2.mutable_data_ptr<float>();
  const float* gradient = parameter.gradient.const_data_ptr<float>();
  for (std::int64_t i = 0; i < parameter.gradient.numel(); ++i) {
    const float g = gradient[i] * gradient_scale;
    p[i] = p[i] * decay;
    m[i] = (from_gradient ? g : m[i]) + weight * (g - m[i]);
    v[i] = v[i] * beta2 + (v_weight * g) * g;
    p[i] = p[i] + (step_size * m[i]) / (std::sqrt(v[i]) / v_correction + epsilon);
  }
}

}  // namespace

Tensors microbatch(const Tensors& batch, int index, int num_microbatches) {
  Tensors part;
  for (const at::Tensor& tensor : batch) {
    const bool whole = !tensor.defined() || tensor.dim() == 0;
    part.push_back(whole ? tensor : tensor.tensor_split(num_microbatches)[static_cast<std::size_t>(index)]);
  }
  return part;
}

Result train(const Model& model, const Loss& loss, const std::vector<Round>& rounds, const Settings& settings) {
  Layers layers;
  for (const LayerSpec& spec : model.layers()) layers.push_back(spec.make());
  std::vector<Stored> stored = store_parameters(model, layers);
  Result result;
  double step = 0;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    result.losses.push_back(run_round(layers, loss, rounds[i], stored, settings));
    if ((i + 1) % static_cast<std::size_t>(settings.rounds_per_step) != 0) continue;
    ++step;
    add_uses(stored);
    const double norm = grad_norm(stored);
    result.grad_norms.push_back(norm);
    const double scale = settings.max_grad_norm > 0 ? std::min(1.0, settings.max_grad_norm / (norm + 1e-6)) : 1.0;
    for (Stored& parameter : stored) {
      parameter.late_working.copy_(parameter.state.working);
      update(parameter, settings.rule, step, static_cast<float>(scale));
      parameter.state.working.copy_(parameter.state.master);
    }
  }
  for (Stored& parameter : stored) result.parameters.push_back(parameter.state);
  return result;
}

}  // namespace rp::reference
