// Implements the part of Updates that exchanges gradients, sums of squares and weights with the other nodes.
#include <variant>

#include "coordinator/updates/updates.h"

namespace rp {

void Updates::round_elsewhere(int node, Version version, std::uint64_t round) {
  MutexLock lock(mutex_);
  PendingStep& step = step_at(version);
  for (const GroupId group : groups_) {
    if (store_.catalogue().owned(group).is_empty()) continue;
    for (std::uint32_t use = 0; use < store_.catalogue().weight_groups()[group].num_uses; ++use)
      step.hold(group, PendingStep::Holder::kOtherNodes);
  }
  exchange_->expect_gradients(node, version, round);
}

bool Updates::take_events() {
  if (exchange_ == nullptr) return false;
  const std::vector<ExchangeEvent> events = exchange_->take_events();
  for (const ExchangeEvent& event : events) {
    std::visit([this](const auto& some_event) RP_REQUIRES(mutex_) { note(some_event); }, event);
  }
  return !events.empty();
}

void Updates::note(const ReceivedGradient& gradient) {
  to_add_.push_back({.version = gradient.version,
                     .round = gradient.round,
                     .part = {.use = gradient.use, .elements = gradient.elements, .data = gradient.data},
                     .received = gradient});
}

void Updates::note(const SentGradient& sent) { drop_hold(sent.use); }

void Updates::note(const SentWeights& sent) {
  --num_sends_of_weights_;
  const std::uint32_t num_copies = store_.catalogue().weight_groups()[sent.group].num_copies;
  release(sent.version + num_copies, sent.group, PendingStep::Holder::kOtherNodes);
  changed_.notify_all();
}

void Updates::note(const ReceivedWeights& received) {
  PendingStep& step = steps_.begin()->second;
  mutex_.unlock();
  publish(received.group, received.version);
  mutex_.lock();
  step.count_published();
  end_step_if_complete(received.version, step);
}

void Updates::note(const ReceivedSquares&) {
  const Version version = steps_.begin()->first;
  PendingStep& step = steps_.begin()->second;
  for (const GroupId group : groups_) step.set_square_sum(group, squares_.sum(group));
  step.set_squares_known();
  end_step_if_complete(version, step);
}

void Updates::exchange_squares(PendingStep& step) {
  step.set_squares_summed();
  if (exchange_ != nullptr && !groups_.empty())
    return exchange_->exchange_squares([this](int node) { return squares_.of_node(node); });
  for (const GroupId group : groups_) {
    if (computes_squares(group)) step.set_square_sum(group, squares_.sum(group));
  }
  step.set_squares_known();
}

// A send reads the working copy, like a task.
void Updates::send_weights(GroupId group, Version version) {
  if (store_.catalogue().owned(group).is_empty()) return;
  ++num_sends_of_weights_;
  step_at(version + store_.catalogue().weight_groups()[group].num_copies).hold(group, PendingStep::Holder::kOtherNodes);
  exchange_->send_weights(group, version);
}

}  // namespace rp
