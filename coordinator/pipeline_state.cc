#include "coordinator/pipeline_state.h"

#include <variant>

namespace rp {

namespace {

void add(CallHash& hash, const AdamW& rule) {
  for (const double value : {rule.learning_rate, rule.beta1, rule.beta2, rule.epsilon, rule.weight_decay})
    hash.add_number(value);
}

void add(CallHash& hash, const Adam& rule) {
  for (const double value : {rule.learning_rate, rule.beta1, rule.beta2, rule.epsilon, rule.weight_decay})
    hash.add_number(value);
}

void add(CallHash& hash, const Sgd& rule) {
  for (const double value : {rule.learning_rate, rule.momentum, rule.dampening, rule.weight_decay})
    hash.add_number(value);
  hash.add(rule.nesterov ? 1 : 0);
}

void add(CallHash& hash, const StepRequest& request) {
  for (const UpdateRule& rule : request.rules) {
    hash.add(rule.index());
    std::visit([&](const auto& some_rule) { add(hash, some_rule); }, rule);
  }
  for (const auto& [weight_group, spans] : request.spans) {
    for (const ParameterGroupSpan& span : spans) {
      for (const std::uint64_t value : {std::uint64_t{weight_group.value()}, span.begin, span.end, span.group})
        hash.add(value);
    }
  }
  hash.add_number(request.options.max_grad_norm);
  hash.add_number(request.options.max_grad_value);
  hash.add_number(request.options.router_bias_update_rate);
  hash.add(request.options.skip_nonfinite ? 1 : 0);
}

}  // namespace

int PipelineState::node_of_next(const RoundTraits& traits) const {
  const std::uint64_t place =
      traits.mode == RoundMode::kTrain ? static_cast<std::uint64_t>(rounds_since_step) : num_evaluations;
  return settings.nodes_of_rounds[place % settings.nodes_of_rounds.size()];
}

std::shared_ptr<Round> PipelineState::next_round(const RoundTraits& traits, const PipelineRecord& record) const {
  auto round = std::make_shared<Round>();
  round->traits = traits;
  round->traits.scales_loss = settings.loss_scaling.has_value();
  round->first_layer = record.first_layer;
  round->num_layers = static_cast<int>(record.num_layers);
  round->first_trained_layer = traits.input_gradient ? 0 : first_trained_layer;
  round->number = traits.mode == RoundMode::kTrain ? num_rounds : kFirstEvaluation + num_evaluations;
  round->step = num_steps + 1;
  const bool newest = !settings.asynchronous || (traits.mode == RoundMode::kEvaluate && evaluates_newest);
  round->version = used_version(newest);
  round->next_version = version() + 1;
  round->attempt = num_attempts;
  round->place_in_step = static_cast<std::uint64_t>(rounds_since_step);
  return round;
}

void PipelineState::count(const RoundTraits& traits, bool is_own) {
  calls.add(static_cast<std::uint64_t>(traits.kind));
  calls.add(static_cast<std::uint64_t>(traits.mode));
  calls.add(static_cast<std::uint64_t>(traits.loss));
  calls.add(static_cast<std::uint64_t>(traits.num_microbatches));
  if (traits.mode == RoundMode::kTrain) {
    ++num_rounds;
  } else {
    ++num_evaluations;
  }
  if (traits.kind == RoundKind::kForwardBackward) count_backward(is_own);
}

void PipelineState::count_backward(bool is_own) {
  if (is_own) ++num_attempts;
  ++rounds_since_step;
}

void PipelineState::count_exchanges(const Round& round) {
  if (round.traits.kind != RoundKind::kForwardBackward) return;
  for (const Slot& slot : round.slots) {
    exchanges.add(static_cast<std::uint64_t>(slot.phase));
    exchanges.add(static_cast<std::uint64_t>(slot.layers.first));
  }
}

Version PipelineState::count_step(const StepRequest& request) {
  add(calls, request);
  calls.add(exchanges.value());
  const Version used = used_version(!settings.asynchronous);
  num_rounds_of_steps = num_rounds;
  rounds_since_step = 0;
  evaluates_newest = false;
  ++num_steps;
  return used;
}

void PipelineState::restart_at(std::uint64_t steps, std::uint64_t rounds, Version version) {
  num_steps = steps;
  num_rounds = num_rounds_of_steps = rounds;
  version_of_step_0 = version - steps;
  is_stamped = false;
}

}  // namespace rp
