#include "tests/reference/reference_loop.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "common/random_seed.h"
#include "common/text.h"
#include "models/recompute_context.h"
#include "tests/reference/tied_parameters.h"

namespace rp::reference {

namespace {

using torch::autograd::variable_list;

// A stored parameter: its state, and one leaf for each layer that uses it, in layer order.
struct Stored {
  struct Use {
    at::Tensor leaf;
    at::Tensor sum;  // fp32, over the rounds of the step in order
  };

  Parameter state;
  bool is_trained = true;
  bool is_correction = false;  // of a router
  at::Tensor late_working;     // the working copy of the previous step
  std::vector<Use> uses;
};

Tensors dense(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors)
    result.push_back(tensor.defined() ? tensor.clone(at::MemoryFormat::Contiguous) : tensor);
  return result;
}

// The border behind a layer in autograd's graph. It is one node for all tensors that cross it, so
// that the gradients of a tensor that crosses twice are added in the order of the list. A tensor
// that no layer reads has no gradient.
struct Border : torch::autograd::Node {
  using Node::Node;
  variable_list apply(variable_list&& gradients) override { return dense(gradients); }
};

bool can_have_gradient(const at::Tensor& tensor) {
  return tensor.defined() && at::isFloatingType(tensor.scalar_type());
}

Tensors cross_border(const Tensors& tensors) {
  Tensors crossing;
  for (const at::Tensor& tensor : tensors) crossing.push_back(can_have_gradient(tensor) ? tensor : at::Tensor());
  const bool has_graph = torch::autograd::compute_requires_grad(crossing);
  const auto border = has_graph ? std::make_shared<Border>(torch::autograd::collect_next_edges(crossing)) : nullptr;
  const c10::NoGradGuard no_grad;
  Tensors result = dense(tensors);
  for (std::size_t i = 0; border && i < result.size(); ++i) {
    if (crossing[i].defined()) {
      torch::autograd::set_history(result[i], border);
    } else {
      border->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  return result;
}

// Moves each element towards an even load: up if the expert was chosen by fewer tokens than the mean, down if by more.
void balance(const at::Tensor& correction, const at::Tensor& loads, double rate) {
  const double mean = loads.to(at::kDouble).mean().item<double>();
  float* c = correction.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < loads.numel(); ++i) {
    const double load = loads[i].item<double>();
    if (load < mean) c[i] += static_cast<float>(rate);
    if (load > mean) c[i] -= static_cast<float>(rate);
  }
}

double norm_of(const std::vector<at::Tensor>& gradients) {
  double squares = 0;
  for (const at::Tensor& gradient : gradients) {
    const float* g = gradient.const_data_ptr<float>();
    for (std::int64_t i = 0; i < gradient.numel(); ++i) squares += static_cast<double>(g[i]) * g[i];
  }
  return std::sqrt(squares);
}

}  // namespace

struct Loop::State {
  State(const Model& model, std::vector<Loss> losses_of_model, const LoopOptions& loop_options)
      : losses(std::move(losses_of_model)), options(loop_options) {
    for (const LayerSpec& spec : model.layers()) layers.push_back(spec.make());
    const std::map<Place, Place> first = first_uses(model);
    std::map<Place, std::size_t> stored_at;
    for (int layer = 0; layer < model.num_layers(); ++layer) {
      for (const NamedParameter& parameter : layers[layer]->parameters()) {
        const Place place{layer, parameter.name};
        const auto tied = first.find(place);
        if (tied == first.end() || tied->second == place) {
          stored_at[place] = stored.size();
          stored.push_back(make_stored(model, place, parameter));
        }
        Stored& owner = stored[stored_at.at(tied == first.end() ? place : tied->second)];
        owner.uses.push_back({parameter.value, at::zeros(parameter.value.sizes(), at::kFloat)});
      }
    }
  }

  static Stored make_stored(const Model& model, const Place& place, const NamedParameter& parameter) {
    const LayerSpec& spec = model.layers()[place.first];
    const at::ScalarType dtype = parameter.keeps_dtype ? parameter.value.scalar_type() : model.dtype();
    const at::Tensor master =
        parameter.value.detach().to(parameter.keeps_dtype ? dtype : at::kFloat).clone(at::MemoryFormat::Contiguous);
    if (spec.initialize) spec.initialize(place.second, master);
    Stored result;
    result.is_trained = parameter.value.requires_grad();
    result.state.name = cat(place.first, '.', place.second);
    result.is_correction = parameter.is_correction;
    result.state.working = master.to(dtype, /*non_blocking=*/false, /*copy=*/true);
    result.late_working = result.state.working.clone();
    if (!result.is_trained) return result;
    result.state.master = master;
    result.state.moment1 = at::zeros_like(master);
    result.state.moment2 = at::zeros_like(master);
    return result;
  }

  // Points the layers at their weights and begins a task of all layers. Ends the task of a round
  // that was dropped.
  void begin_task(bool newest) {
    end_task();
    for (Stored& parameter : stored) {
      for (Stored::Use& use : parameter.uses) {
        use.leaf.set_data(newest ? parameter.state.working : parameter.late_working);
        if (!parameter.is_trained) continue;
        use.leaf.set_grad_dtype(at::kFloat);
        use.leaf.mutable_grad() = at::zeros(use.leaf.sizes(), at::kFloat);
      }
    }
    for (auto& layer : layers) layer->begin_task();
    in_task = true;
  }

  void end_task() {
    if (!std::exchange(in_task, false)) return;
    for (auto& layer : layers) layer->end_task();
  }

  void end_round() {
    end_task();
    for (Stored& parameter : stored) {
      if (!parameter.is_trained) continue;
      for (Stored::Use& use : parameter.uses) {
        use.sum += use.leaf.grad().to(parameter.state.working.scalar_type()).to(at::kFloat);
      }
    }
  }

  void train_mode(bool on) {
    for (auto& layer : layers) layer->train(on);
  }

  // Runs the whole model on one microbatch.
  Tensors forward(Tensors values, int m) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      generator.set_current_seed(random_seed(options.seed, num_rounds, layer, static_cast<std::uint64_t>(m)));
      RecomputeContext context;  // a forward pass that is not recomputed
      const RecomputeScope scope(context);
      values = layers[layer]->forward(values);
      if (layer + 1 < layers.size()) values = cross_border(values);
    }
    for (at::Tensor& value : values) {
      if (value.defined()) value = value.contiguous();
    }
    return values;
  }

  int count_of(int num_microbatches) const {
    return num_microbatches > 0 ? num_microbatches : options.num_microbatches;
  }

  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<Loss> losses;
  LoopOptions options;
  std::vector<Stored> stored;
  std::uint64_t num_rounds = 0;  // training rounds
  std::int64_t num_steps = 0;
  bool evaluates_newest = false;
  bool in_task = false;  // the layers have begun a task
};

Loop::Loop(const Model& model, std::vector<Loss> losses, const LoopOptions& options)
    : state_(std::make_unique<State>(model, std::move(losses), options)) {}
Loop::~Loop() = default;

Loop::Outcome Loop::forward_backward(const Round& round, int loss, int num_microbatches) {
  State& state = *state_;
  state.begin_task(!state.options.asynchronous);
  const int count = state.count_of(num_microbatches);
  Outcome outcome;
  for (int m = 0; m < count; ++m) {
    outcome.outputs.push_back(state.forward(microbatch(round.inputs, m, count), m));
    const Tensors numbers =
        state.losses.at(loss).function(outcome.outputs.back(), microbatch(round.arguments, m, count));
    Tensors roots;
    for (const at::Tensor& number : numbers) {
      if (number.requires_grad()) roots.push_back(number);
    }
    if (!roots.empty()) torch::autograd::backward(roots);
    outcome.losses.resize(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) outcome.losses[i] += numbers[i].item<double>();
  }
  state.end_round();
  ++state.num_rounds;
  return outcome;
}

std::vector<Tensors> Loop::evaluate(const Tensors& inputs, int num_microbatches) {
  State& state = *state_;
  const c10::NoGradGuard no_grad;
  state.begin_task(!state.options.asynchronous || state.evaluates_newest);
  state.train_mode(false);
  const int count = state.count_of(num_microbatches);
  std::vector<Tensors> outputs;
  for (int m = 0; m < count; ++m) outputs.push_back(state.forward(microbatch(inputs, m, count), m));
  state.train_mode(true);
  state.end_task();
  return outputs;
}

OpenRound Loop::forward(const Tensors& inputs, int num_microbatches, bool input_gradients) {
  State& state = *state_;
  state.begin_task(!state.options.asynchronous);
  const int count = state.count_of(num_microbatches);
  OpenRound round;
  for (int m = 0; m < count; ++m) {
    round.inputs.push_back(microbatch(inputs, m, count));
    for (at::Tensor& input : round.inputs.back()) {
      if (!input.defined()) continue;
      input = input.detach();
      input.requires_grad_(input_gradients && can_have_gradient(input));
    }
    round.outputs.push_back(state.forward(round.inputs.back(), m));
  }
  ++state.num_rounds;
  return round;
}

std::vector<Tensors> Loop::backward(const OpenRound& round, const std::vector<Tensors>& gradients) {
  std::vector<Tensors> of_inputs;
  for (std::size_t m = 0; m < round.outputs.size(); ++m) {
    Tensors roots, root_gradients;
    for (std::size_t i = 0; i < round.outputs[m].size(); ++i) {
      const at::Tensor& output = round.outputs[m][i];
      if (!gradients[m][i].defined() || !output.defined() || !output.requires_grad()) continue;
      roots.push_back(output);
      root_gradients.push_back(gradients[m][i].contiguous());
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    of_inputs.emplace_back();
    for (const at::Tensor& input : round.inputs[m]) of_inputs.back().push_back(input.defined() ? input.grad() : input);
  }
  state_->end_round();
  return of_inputs;
}

double Loop::step(const AdamW& rule, double max_grad_norm, double router_bias_update_rate) {
  State& state = *state_;
  ++state.num_steps;
  state.evaluates_newest = false;
  std::vector<at::Tensor> gradients, normed;
  for (Stored& parameter : state.stored) {
    if (!parameter.is_trained) continue;
    gradients.push_back(at::zeros_like(parameter.state.master));
    for (Stored::Use& use : parameter.uses) {
      gradients.back() += use.sum;
      use.sum.zero_();
    }
    if (!parameter.is_correction) normed.push_back(gradients.back());
  }
  const double norm = norm_of(normed);
  const double scale = max_grad_norm > 0 ? std::min(1.0, max_grad_norm / (norm + 1e-6)) : 1.0;
  std::size_t next = 0;
  for (Stored& parameter : state.stored) {
    if (!parameter.is_trained) continue;
    parameter.late_working.copy_(parameter.state.working);
    const at::Tensor& gradient = gradients[next++];
    if (max_grad_norm > 0 && !std::isfinite(norm)) continue;
    if (parameter.is_correction) {
      balance(parameter.state.master, gradient, router_bias_update_rate);
    } else {
      adamw(parameter.state, gradient, rule, state.num_steps, scale);
    }
    parameter.state.working.copy_(parameter.state.master);
  }
  return norm;
}

void Loop::synchronize() { state_->evaluates_newest = true; }

std::vector<Parameter> Loop::parameters() const {
  std::vector<Parameter> result;
  for (const Stored& parameter : state_->stored) result.push_back(parameter.state);
  return result;
}

std::vector<Buffer> Loop::buffers() const {
  std::vector<Buffer> result;
  for (std::size_t layer = 0; layer < state_->layers.size(); ++layer) {
    for (const NamedBuffer& buffer : state_->layers[layer]->buffers())
      result.push_back({cat(layer, '.', buffer.name), buffer.value});
  }
  return result;
}

void adamw(const Parameter& parameter, const at::Tensor& gradient, const AdamW& rule, std::int64_t step,
           double gradient_scale) {
  const auto t = static_cast<double>(step);
  const auto scale = static_cast<float>(gradient_scale);
  const auto decay = static_cast<float>(1.0 - rule.learning_rate * rule.weight_decay);
  const double m_weight = 1.0 - rule.beta1;
  const bool from_gradient = m_weight >= 0.5;
  const auto weight = static_cast<float>(from_gradient ? m_weight - 1.0 : m_weight);
  const auto beta2 = static_cast<float>(rule.beta2), v_weight = static_cast<float>(1.0 - rule.beta2);
  const auto v_correction = static_cast<float>(std::sqrt(1.0 - std::pow(rule.beta2, t)));
  const auto epsilon = static_cast<float>(rule.epsilon);
  const auto step_size = static_cast<float>(-rule.learning_rate / (1.0 - std::pow(rule.beta1, t)));
  float* p = parameter.master.mutable_data_ptr<float>();
  float* m = parameter.moment1.mutable_data_ptr<float>();
  float* v = parameter.moment2.mutable_data_ptr<float>();
  const float* gradients = gradient.const_data_ptr<float>();
  for (std::int64_t i = 0; i < gradient.numel(); ++i) {
    const float g = gradients[i] * scale;
    p[i] = p[i] * decay;
    m[i] = (from_gradient ? g : m[i]) + weight * (g - m[i]);
    v[i] = v[i] * beta2 + (v_weight * g) * g;
    p[i] = p[i] + (step_size * m[i]) / (std::sqrt(v[i]) / v_correction + epsilon);
  }
}

Tensors concatenated(const std::vector<Tensors>& microbatches) {
  Tensors result;
  for (std::size_t i = 0; i < microbatches.front().size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const Tensors& tensors : microbatches)
      parts.push_back(tensors[i].defined() ? tensors[i].detach() : tensors[i]);
    result.push_back(parts.front().defined() ? at::cat(parts) : at::Tensor());
  }
  return result;
}

Tensors microbatch(const Tensors& batch, int index, int num_microbatches) {
  Tensors part;
  for (const at::Tensor& tensor : batch) {
    const bool whole = !tensor.defined() || tensor.dim() == 0;
    // Copied, because matrix products round differently if their memory does not begin on a cache
    // line.
    part.push_back(whole ? tensor : tensor.tensor_split(num_microbatches)[index].clone(at::MemoryFormat::Contiguous));
  }
  return part;
}

Result train(const Model& model, const Loss& loss, const std::vector<Round>& rounds, const Settings& settings) {
  Loop loop(model, {loss}, {.num_microbatches = settings.num_microbatches, .asynchronous = settings.asynchronous});
  Result result;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    const std::vector<double> losses = loop.forward_backward(rounds[i]).losses;
    result.losses.push_back(std::accumulate(losses.begin(), losses.end(), 0.0));
    if ((i + 1) % static_cast<std::size_t>(settings.rounds_per_step) != 0) continue;
    result.grad_norms.push_back(loop.step(settings.rule, settings.max_grad_norm, settings.router_bias_update_rate));
  }
  result.parameters = loop.parameters();
  return result;
}

}  // namespace rp::reference
