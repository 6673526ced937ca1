// roundpipe/optimizer.h
// Describes what a step does with the gradients: update rules, which run in the coordinator, by
// group of parameters; clipping; loss scaling; learning-rate schedules.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace rp {

// AdamW (decoupled weight decay; Loshchilov and Hutter 2019) over fp32 masters and moments, with
// bias correction. t is the number of steps that changed the weights, including this one:
//   p -= learning_rate * weight_decay * p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};

// Adam (Kingma and Ba 2015): learning_rate, beta1, beta2 and epsilon have the same meaning as in
// AdamW, but the weight decay is part of the gradient: g += weight_decay * p.
struct Adam {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};

// Stochastic gradient descent, with momentum if `momentum` is not 0:
//   g += weight_decay * p;  m = momentum m + (1 - dampening) g, in the first step m = g;  nesterov: m' = g + momentum m
//   p -= learning_rate * m (m' with nesterov, g without momentum)
struct Sgd {
  double learning_rate = 1e-2;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
};

// One of the library's rules: one fused pass over a layer's gradients, weights and moments, as soon
// as the layer's gradients are final.
using UpdateRule = std::variant<AdamW, Adam, Sgd>;

// The properties of a parameter by which it can be assigned to a group.
struct ParameterInfo {
  std::string name;                 // "<layer index>.<name in the layer>" of its first use
  int layer = 0;                    // of its first use
  std::string parameter;            // its name in that layer
  std::vector<std::int64_t> shape;  // of the tensor in its layer
};

// Parameters with a rule of their own, for example to exclude biases from weight decay. A parameter
// belongs to the first group of the list that contains it. Without `contains`, a group contains all
// parameters.
struct ParameterGroup {
  std::function<bool(const ParameterInfo&)> contains;
  UpdateRule rule;
};

// What a step does: it applies one rule to all parameters, or a rule to each group, or calls a
// function of the user.
//
// The function is called once per step, when the gradients are final, in a thread of the runtime.
// It finds the gradients (unscaled, and clipped) in grad() of Pipeline::optimizer_parameters(), and
// changes these parameters in place, as torch::optim does. A synchronous step has called it when
// step() returns, and step() throws what the function throws. An asynchronous step calls it during
// the next round: do not touch what the function uses until synchronize() has returned, which
// throws what the function throws. An exception of the function ends the run.
class Update {
 public:
  // Applies one rule to all parameters.
  Update(const AdamW& rule) : Update(UpdateRule(rule)) {}
  Update(const Adam& rule) : Update(UpdateRule(rule)) {}
  Update(const Sgd& rule) : Update(UpdateRule(rule)) {}
  Update(UpdateRule rule) : groups_{{.contains = {}, .rule = rule}} {}
  // Applies a rule to each group.
  Update(std::vector<ParameterGroup> groups) : groups_(std::move(groups)) {}
  // Calls a function. It may be anything that can be called without arguments.
  template <typename Function, typename = std::enable_if_t<std::is_invocable_r_v<void, Function&>>>
  Update(Function function) : function_(std::move(function)) {}

  // Return the groups, which are empty if there is a function, and the function, which is empty if
  // there are groups.
  [[nodiscard]] const std::vector<ParameterGroup>& groups() const { return groups_; }
  [[nodiscard]] const std::function<void()>& function() const { return function_; }

 private:
  std::vector<ParameterGroup> groups_;
  std::function<void()> function_;
};

// Options of one step.
struct StepOptions {
  // The update runs during the next round, which uses weights that are one step older (staleness
  // 1). All steps of a run must have the same value, which is also that of
  // PipelineOptions::asynchronous.
  bool asynchronous = false;
  // Gradients are scaled down to this global L2 norm; 0 switches clipping by norm off. This is a
  // barrier: all gradients of the step must be final before the first update. A step whose norm is
  // not finite is skipped.
  double max_grad_norm = 0.0;
  // Each element of a gradient is clamped to [-max_grad_value, max_grad_value]; 0 switches this
  // off. Cannot be combined with max_grad_norm.
  double max_grad_value = 0.0;
  // A step with an infinite or NaN gradient changes no weight and no moment, and
  // StepResult::skipped() returns true. With clipping by norm and with loss scaling, such steps are
  // always skipped. This is a barrier, like clipping by norm.
  bool skip_nonfinite = false;
  // Balances the experts of routers that correct their scores, without a loss (arXiv 2408.15664): each
  // correction whose expert was chosen by fewer tokens of the step than the mean over the router's
  // experts is raised by this number, and each whose expert was chosen by more is lowered by it. Must
  // be 0 unless the model has corrections that are trained (TrainedParts::corrections,
  // NamedParameter::is_correction). A step that is skipped does not change them.
  double router_bias_update_rate = 0.0;
  // What the program needs to continue after this step if its process dies: Session::restarted() returns it.
  std::string restart_data{};
};

// Loss scaling, for gradients in fp16, in which small values would become 0. The loss is multiplied
// by a scale before the backward pass, and the gradients are divided by the scale before the
// update. A step whose gradients overflow is skipped, and the scale is multiplied by
// `backoff_factor`. After `growth_interval` steps without overflow, it is multiplied by
// `growth_factor`. Gradients that enter or leave the pipeline in training through autograd are not
// scaled. Each step is a barrier, as with clipping by norm. An asynchronous run uses a new scale
// one step later, as it does with new weights. The scale is saved and loaded with the pipeline's
// state.
struct LossScaling {
  double initial_scale = 65536.0;  // must be above 0
  double growth_factor = 2.0;      // must be at least 1
  double backoff_factor = 0.5;     // must be above 0 and at most 1
  int growth_interval = 2000;      // in steps
};

// The course of the learning rate after the warm-up.
enum class LearningRateSchedule : std::uint8_t {
  kConstant,           // stays at its peak
  kLinear,             // falls along a line
  kCosine,             // falls along half a cosine
  kWarmupStableDecay,  // stays at its peak, then falls along a line in the last decay_steps (WSD)
};

// A learning rate as a function of the step. It rises linearly to `peak` over the first
// `warmup_steps`, and then follows the schedule. When it falls, it is still `peak` in the first
// step of the fall, and would reach `minimum` one step after max_steps, so that the last step still
// trains.
struct LearningRate {
  LearningRateSchedule schedule = LearningRateSchedule::kConstant;
  double peak = 1e-3;
  double minimum = 0;  // must be at most `peak`
  std::int64_t warmup_steps = 0;
  // For kWarmupStableDecay: the length of the fall. The fall is shorter if the warm-up leaves fewer
  // steps.
  std::int64_t decay_steps = 0;
  std::int64_t max_steps = 1;

  // Returns the learning rate of step `step`, counted from 1. After max_steps, a schedule that
  // falls stays at `minimum`. Throws rp::Error (kUsage) for a step below 1, for negative numbers of
  // steps, and for a minimum that is not between 0 and the peak.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace rp
