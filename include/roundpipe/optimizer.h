// roundpipe/optimizer.h
// What a step does with the gradients: update rules that run on the coordinator, by group of parameters; clipping; loss
// scaling; learning-rate schedules.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace rp {

// AdamW (decoupled weight decay; Loshchilov and Hutter 2019) over fp32 masters and moments, with bias correction, t
// being the number of steps that changed the weights, this one included:
//   p -= learning_rate * weight_decay * p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};

// Adam (Kingma and Ba 2015): learning_rate, beta1, beta2 and epsilon as in AdamW, but the weight decay is part of the
// gradient: g += weight_decay * p.
struct Adam {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};

// Stochastic gradient descent, with momentum if that is not 0:
//   g += weight_decay * p;  m = momentum m + (1 - dampening) g, in the first step m = g;  nesterov: m' = g + momentum m
//   p -= learning_rate * m (m' with nesterov, g without momentum)
struct Sgd {
  double learning_rate = 1e-2;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
};

// A rule of the library's: one fused pass over a layer's gradients, weights and moments as soon as its gradients are
// final.
using UpdateRule = std::variant<AdamW, Adam, Sgd>;

// What a group of parameters can be told by.
struct ParameterInfo {
  std::string name;                 // "<layer index>.<name in the layer>" of its first use
  int layer = 0;                    // of its first use
  std::string parameter;            // its name in that layer
  std::vector<std::int64_t> shape;  // of one copy of it
};

// Parameters with a rule of their own, as for a weight decay that spares biases. The first group of the list that
// contains a parameter counts; no `contains` means all.
struct ParameterGroup {
  std::function<bool(const ParameterInfo&)> contains;
  UpdateRule rule;
};

// What a step does: a rule for all parameters; a list of groups; or a function of the user's.
//
// The function is called once a step when the gradients are final, in a thread of the runtime's. It finds the gradients
// (clipped, unscaled) in grad() of Pipeline::optimizer_parameters() and changes those parameters, as torch::optim does.
// With a synchronous step it has returned when step() returns, and step() throws what it throws; of an asynchronous
// step it runs beside the next round, so what it uses must be left alone until synchronize(), which throws. What it
// throws ends the run.
class Update {
 public:
  // A rule for all parameters.
  Update(const AdamW& rule) : Update(UpdateRule(rule)) {}
  Update(const Adam& rule) : Update(UpdateRule(rule)) {}
  Update(const Sgd& rule) : Update(UpdateRule(rule)) {}
  Update(UpdateRule rule) : groups_{{.contains = {}, .rule = rule}} {}
  // One per group.
  Update(std::vector<ParameterGroup> groups) : groups_(std::move(groups)) {}
  // Anything that can be called without arguments.
  template <typename Function, typename = std::enable_if_t<std::is_invocable_r_v<void, Function&>>>
  Update(Function function) : function_(std::move(function)) {}

  // Empty if there is a function.
  [[nodiscard]] const std::vector<ParameterGroup>& groups() const { return groups_; }
  [[nodiscard]] const std::function<void()>& function() const { return function_; }

 private:
  std::vector<ParameterGroup> groups_;
  std::function<void()> function_;
};

// Options of one step.
struct StepOptions {
  // The update runs beside the next round, which uses weights one step older (staleness 1). All steps of a run are
  // alike: mixing is an error.
  bool asynchronous = false;
  // Gradients are scaled down to this global L2 norm; 0 switches clipping off. A barrier: all gradients of the step
  // are there before the first update. A step whose norm is not finite is skipped.
  double max_grad_norm = 0.0;
  // Each element of a gradient is moved into [-max_grad_value, max_grad_value]; 0 switches it off. Not beside
  // max_grad_norm.
  double max_grad_value = 0.0;
  // A step with an infinite or NaN gradient changes no weight and no moment; StepResult::skipped() tells. Clipping by
  // norm and loss scaling skip such steps in any case. A barrier, as those are.
  bool skip_nonfinite = false;
};

// Loss scaling, for gradients in fp16, whose small values would become 0: the loss is multiplied by a scale before the
// backward, and the gradients are divided by it before the update. A step that overflowed is skipped, and the scale
// shrinks; after `growth_interval` steps without overflow it grows. What crosses the pipeline's ends in a training
// through autograd is not scaled. Each step is a barrier, as clipping by norm. Asynchronous steps find a new scale one
// step later, as they find weights. Saved and loaded with the pipeline's state.
struct LossScaling {
  double initial_scale = 65536.0;  // above 0
  double growth_factor = 2.0;      // from 1 on
  double backoff_factor = 0.5;     // at most 1
  int growth_interval = 2000;      // steps
};

// How the learning rate goes on after the warm-up.
enum class LearningRateSchedule : std::uint8_t {
  kConstant,           // it stays at its peak
  kLinear,             // it falls along a line
  kCosine,             // it falls as half a cosine
  kWarmupStableDecay,  // it stays, and falls along a line in the last decay_steps (WSD)
};

// A learning rate as a function of the step: it rises linearly to `peak` over the first `warmup_steps`, and then goes
// on as the schedule says. What falls begins at `peak`, in the first step of the fall, and reaches `minimum` one step
// behind max_steps, so that the last step trains, too.
struct LearningRate {
  LearningRateSchedule schedule = LearningRateSchedule::kConstant;
  double peak = 1e-3;
  double minimum = 0;  // at most `peak`
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // of kWarmupStableDecay; what the warm-up leaves of them
  std::int64_t max_steps = 1;

  // The learning rate of step `step`, counted from 1; beyond max_steps of a schedule that falls, the minimum. Throws
  // rp::Error (kUsage) for a step below 1, numbers of steps below 0, and a minimum that is not between 0 and the peak.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace rp
