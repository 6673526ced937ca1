#include "coordinator/updates/pending_step.h"

#include <cmath>
#include <utility>

#include "common/check.h"

namespace rp {

PendingStep::PendingStep(Version version, const Catalogue& catalogue, std::uint32_t pipeline,
                         std::span<const GroupId> groups, bool scales_loss, bool is_recorded)
    : version_(version),
      catalogue_(catalogue),
      number_of_pipeline_(pipeline),
      pipeline_(catalogue.pipelines()[pipeline]),
      groups_(groups),
      scales_loss_(scales_loss),
      is_recorded_(is_recorded) {
  for (const GroupId group : groups) holds_[group] = 0;
}

void PendingStep::hold(GroupId group, Holder holder) {
  int& holds = holds_.at(group);
  RP_ASSERT(!is_called() || holds > 0);
  ++holds;
  ++(holder == Holder::kThisNode ? num_holds_ : num_holds_of_others_);
}

bool PendingStep::release(GroupId group, Holder holder) {
  int& holds = holds_.at(group);
  --(holder == Holder::kThisNode ? num_holds_ : num_holds_of_others_);
  RP_ASSERT(holds > 0);
  if (--holds > 0 || !is_called()) return false;
  ready_.insert(group);
  ++num_ready_;
  return true;
}

bool PendingStep::is_next(UseId use, std::uint64_t round, const ElementRange& elements) const {
  const ElementRange owned = catalogue_.owned(group_of(use));
  if (owned.is_empty()) return true;
  const auto found = sums_.find(use);
  const SumProgress progress = found == sums_.end() ? SumProgress{} : found->second;
  return progress.round == round && owned.begin + progress.element == elements.begin;
}

void PendingStep::add(UseId use, const ElementRange& elements) {
  SumProgress& progress = sums_[use];
  progress.element += elements.size();
  if (is_last(use, elements)) progress = {.round = progress.round + 1};
}

void PendingStep::call(Version used_version, StepRequest request) {
  move_to(StepState::kCalled);
  used_version_ = used_version;
  request_ = std::move(request);
  for (const auto& [group, holds] : holds_) {
    if (holds == 0) ready_.insert(group);
  }
  num_ready_ = static_cast<std::uint32_t>(ready_.size());
}

std::vector<CommittedGradient> PendingStep::gradients_of(GroupId group) const {
  std::vector<CommittedGradient> gradients;
  for (const UseRecord& use : catalogue_.uses_of_group(group)) {
    const UseId index(&use - catalogue_.uses().data());
    const auto found = gradients_.find(index);
    gradients.push_back(found == gradients_.end() ? CommittedGradient{.use = index} : found->second);
  }
  return gradients;
}

bool PendingStep::may_be_skipped() const {
  return request_.options.max_grad_norm > 0 || request_.options.skip_nonfinite || scales_loss_;
}

void PendingStep::end_forward(std::map<int, std::vector<std::byte>> buffers) {
  ++num_forwards_;
  results_.buffers = std::move(buffers);
}

bool PendingStep::is_barrier() const { return may_be_skipped() || request_.function || is_recorded_; }

bool PendingStep::can_update() const {
  if (!is_called()) return false;
  if (groups_.empty()) return true;  // nothing to train
  const bool has_results = results_.losses.size() == request_.num_rounds && num_forwards_ == request_.num_forwards;
  if (is_recorded_ && !has_results) return false;
  if (ready_.empty()) return false;
  if (!is_barrier()) return true;
  return num_ready_ == groups_.size() && (!squares_are_summed() || squares_are_known());
}

GroupId PendingStep::take_ready() {
  const GroupId group = *ready_.begin();
  ready_.erase(ready_.begin());
  return group;
}

void PendingStep::finish_norm(double loss_scale) {
  double total = 0;
  for (const auto& [group, sum] : square_sums_) {
    if (catalogue_.weight_groups()[group].is_correction != 0) continue;  // its gradient is a count of tokens
    total += sum;
    if (std::isfinite(sum)) continue;
    const int number = pipeline_.layer_of(catalogue_.uses()[catalogue_.weight_groups()[group].first_use].layer);
    std::vector<int>& layers = outcome_->nonfinite_layers;
    if (layers.empty() || layers.back() != number) layers.push_back(number);
  }
  outcome_->loss_scale = loss_scale;
  outcome_->grad_norm = std::sqrt(total) / loss_scale;
  outcome_->skipped = may_be_skipped() && !std::isfinite(total);
  norm_known_ = true;
}

UpdateStep PendingStep::scaling() const {
  const StepOptions& options = request_.options;
  double scale = 1 / outcome_->loss_scale;
  if (options.max_grad_norm > 0 && outcome_->grad_norm > options.max_grad_norm) {
    scale *= options.max_grad_norm / (outcome_->grad_norm + 1e-6);
  }
  UpdateStep step;
  step.gradient_scale = static_cast<float>(scale);
  step.clips_values = options.max_grad_value > 0;
  if (step.clips_values) step.max_value = static_cast<float>(options.max_grad_value);
  return step;
}

std::vector<UpdateSpan> PendingStep::rules_of(GroupId group, std::uint64_t number) const {
  std::vector<UpdateSpan> rules;
  if (outcome_->skipped) return rules;
  const WeightGroupRecord& record = catalogue_.weight_groups()[group];
  if (record.is_correction != 0) {
    const UpdateStep step = correction_step(request_.options.router_bias_update_rate);
    return {{.begin = 0, .end = record.num_elements, .step = step}};
  }
  const UpdateStep scaled = scaling();
  const auto found = request_.spans.find(group);
  const std::vector<ParameterGroupSpan> whole = {{.begin = 0, .end = record.num_elements, .group = 0}};
  for (const ParameterGroupSpan& span : found == request_.spans.end() ? whole : found->second) {
    UpdateStep rule = update_step_of(request_.rules[span.group], static_cast<std::int64_t>(number));
    rule.gradient_scale = scaled.gradient_scale;
    rule.clips_values = scaled.clips_values;
    rule.max_value = scaled.max_value;
    rules.push_back({.begin = span.begin, .end = span.end, .step = rule});
  }
  return rules;
}

}  // namespace rp
