#include "pipeline/step_check.h"

#include <cmath>

#include "common/text.h"
#include "optimizer/update.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

void check(const char* name, double value, bool is_good, const char* range) {
  if (!is_good) throw Error(ExitCode::kUsage, cat("step(): ", name, " is ", value, ", but must be ", range));
}

void check_from_0(const char* name, double value, const char* range = "a number from 0 on") {
  check(name, value, std::isfinite(value) && value >= 0, range);
}

void check_below_1(const char* name, double value) { check(name, value, value >= 0 && value < 1, "from 0 to below 1"); }

template <typename AdamRule>
void check_adam(const AdamRule& rule) {
  check_from_0("learning_rate", rule.learning_rate);
  check_from_0("weight_decay", rule.weight_decay);
  check_below_1("beta1", rule.beta1);
  check_below_1("beta2", rule.beta2);
  check_from_0("epsilon", rule.epsilon);
}

void check_rule(const AdamW& rule) { check_adam(rule); }
void check_rule(const Adam& rule) { check_adam(rule); }
void check_rule(const Sgd& rule) {
  check_from_0("learning_rate", rule.learning_rate);
  check_from_0("weight_decay", rule.weight_decay);
  check_from_0("momentum", rule.momentum);
  check("dampening", rule.dampening, std::isfinite(rule.dampening), "a number");
  if (rule.nesterov && (rule.momentum == 0 || rule.dampening != 0)) {
    throw Error(ExitCode::kUsage, cat("step(): nesterov needs a momentum and no dampening, but they are ",
                                      rule.momentum, " and ", rule.dampening));
  }
}

}  // namespace

void check_step(const Update& update, const StepOptions& step, const PipelineOptions& pipeline) {
  const auto refuse = [](const std::string& what) { throw Error(ExitCode::kUsage, cat("step(): ", what)); };
  if (step.asynchronous != pipeline.asynchronous) {
    throw Error(ExitCode::kUsage,
                cat("step() is ", step.asynchronous ? "" : "not ", "asynchronous, but the pipeline is ",
                    pipeline.asynchronous ? "" : "not ", "(PipelineOptions::asynchronous)"));
  }
  check_from_0("max_grad_norm", step.max_grad_norm, "a number from 0 on (0: no clipping)");
  check_from_0("max_grad_value", step.max_grad_value, "a number from 0 on (0: no clipping)");
  check_from_0("router_bias_update_rate", step.router_bias_update_rate);
  if (step.max_grad_norm > 0 && step.max_grad_value > 0)
    refuse("max_grad_norm and max_grad_value are both given; clip in one way");
  if (update.groups().empty() && !update.function()) refuse("no rule, no group and no function; say what a step does");
  for (const ParameterGroup& group : update.groups()) {
    std::visit([](const auto& rule) { check_rule(rule); }, group.rule);
    const int needed = num_moments(update_step_of(group.rule, 1).kind);
    if (needed > pipeline.num_moments) {
      refuse(cat("the rule keeps ", needed, " values per parameter, but the store has ", pipeline.num_moments,
                 "; set PipelineOptions::num_moments to ", needed));
    }
    if (pipeline.optimizer_dtype != at::kFloat) {
      refuse(cat("optimizer_dtype is ", at::toString(pipeline.optimizer_dtype),
                 ", but the library's rules need at::kFloat; give step() a function"));
    }
  }
}

void check_loss_scaling(const LossScaling& scaling) {
  const auto check_field = [](const char* name, double value, bool is_good, const char* range) {
    if (!is_good) throw Error(ExitCode::kUsage, cat("loss_scaling: ", name, " is ", value, ", but must be ", range));
  };
  check_field("initial_scale", scaling.initial_scale, std::isfinite(scaling.initial_scale) && scaling.initial_scale > 0,
              "above 0");
  check_field("growth_factor", scaling.growth_factor,
              std::isfinite(scaling.growth_factor) && scaling.growth_factor >= 1, "from 1 on");
  check_field("backoff_factor", scaling.backoff_factor, scaling.backoff_factor > 0 && scaling.backoff_factor <= 1,
              "above 0, at most 1");
  check_field("growth_interval", scaling.growth_interval, scaling.growth_interval >= 1, "at least 1");
}

void check_limits(const PlanLimits& limits) {
  if (limits.min_stages < 0)
    throw Error(ExitCode::kUsage, cat("plan_limits: min_stages is ", limits.min_stages, ", but must be at least 0"));
  if (limits.threshold != 0 && !(std::isfinite(limits.threshold) && limits.threshold >= 1)) {
    throw Error(ExitCode::kUsage,
                cat("plan_limits: threshold is ", limits.threshold, ", but must be from 1 on, or 0 for no bound"));
  }
}

}  // namespace rp
