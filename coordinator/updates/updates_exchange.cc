// Implements the part of Updates that exchanges gradients, sums of squares and weights with the other nodes.
#include <variant>

#include "common/text.h"
#include "coordinator/updates/updates.h"
#include "roundpipe/error.h"

namespace rp {

void Updates::round_elsewhere(int node, Version version, std::uint64_t round) {
  if (store_.catalogue().workers_exchange()) return;  // its gradients come with those of this node's round
  MutexLock lock(mutex_);
  PendingStep& step = step_at(version);
  for (const GroupId group : groups_) {
    if (store_.catalogue().owned(group).is_empty()) continue;
    for (std::uint32_t use = 0; use < store_.catalogue().weight_groups()[group].num_uses; ++use)
      step.hold(group, PendingStep::Holder::kOtherNodes);
  }
  exchange_->expect_gradients(node, version, round);
}

// In a step in which each node computes equally many rounds, node m computes round j n + m of n nodes.
void Updates::add_parts_of_nodes(Version version, const CommittedGradient& gradient) {
  const Catalogue& catalogue = store_.catalogue();
  const NodePlace place = catalogue.place();
  const GroupId group = group_of(gradient.use);
  const ElementRange owned = catalogue.owned(group);
  const auto num_nodes = static_cast<std::uint64_t>(place.num_nodes);
  HeldGradient& held = held_[gradient.use];
  held = {.gradient = gradient, .num_holds = 0};
  for (int node = 0; node < place.num_nodes; ++node) {
    if (owned.is_empty() && node != place.node) continue;  // without data, only this node's round counts
    ++held.num_holds;
    to_add_.push_back(
        {.version = version,
         .round = gradient.round / num_nodes * num_nodes + static_cast<std::uint64_t>(node),
         .part = {.use = gradient.use,
                  .elements = owned,
                  .data = store_.gradient(gradient.use).data() + catalogue.part_offset(group, node)},
         .holder = node == place.node ? PendingStep::Holder::kThisNode : PendingStep::Holder::kOtherNodes});
  }
  changed_.notify_all();
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
                     .holder = PendingStep::Holder::kOtherNodes,
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

std::exception_ptr Updates::difference_of_calls() {
  const NodePlace place = store_.catalogue().place();
  for (int node = 0; node < place.num_nodes; ++node) {
    if (squares_.hash_of(node) == squares_.hash_of(place.node)) continue;
    return std::make_exception_ptr(Error(
        ExitCode::kUserError,
        cat("the nodes differ: the program has made other calls on node ", node, " than on node ", place.node,
            ", or with other arguments (rounds, numbers of microbatches, learning rates, limits of the norm), since "
            "the start; all nodes must make the same calls in the same order")));
  }
  return nullptr;
}

void Updates::note(const ReceivedSquares&) {
  if (const std::exception_ptr difference = difference_of_calls()) {
    mutex_.unlock();
    options_.report_failure(difference);  // this calls stop()
    mutex_.lock();
    return;
  }
  const Version version = steps_.begin()->first;
  PendingStep& step = steps_.begin()->second;
  for (const GroupId group : groups_) step.set_square_sum(group, squares_.sum(group));
  step.set_squares_known();
  end_step_if_complete(version, step);
}

void Updates::exchange_squares(PendingStep& step) {
  step.set_squares_summed();
  squares_.set_own_hash(step.call_hash());
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
