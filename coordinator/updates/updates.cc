#include "coordinator/updates/updates.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/system/crash_point.h"
#include "coordinator/rounds/commit_check.h"
#include "coordinator/updates/memory_group_updater.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::unique_ptr<GroupUpdater> make_updater(Store& store, std::uint32_t pipeline, std::span<const GroupId> groups,
                                           const UpdatesOptions& options) {
  if (options.make_updater) return options.make_updater(store.catalogue(), options.adds_rounds);
  const std::span<std::byte> scratch =
      options.journal != nullptr ? options.journal->scratch(static_cast<int>(pipeline)) : std::span<std::byte>();
  return std::make_unique<MemoryGroupUpdater>(store, groups, options.num_threads, options.adds_rounds, scratch);
}

}  // namespace

Updates::Updates(Store& store, std::uint32_t pipeline, UpdatesOptions options)
    : store_(store),
      pipeline_(pipeline),
      options_(std::move(options)),
      groups_(store.catalogue().trained_groups(static_cast<int>(pipeline))),
      stamps_(store),
      waits_(options_.trace != nullptr ? options_.waits.traced_by(options_.trace->waits()) : options_.waits),
      updater_(make_updater(store, pipeline, groups_, options_)),
      exchange_(options_.network == nullptr ? nullptr
                                            : std::make_unique<NodeExchange>(store, pipeline, *options_.network,
                                                                             [this] {
                                                                               const MutexLock lock(mutex_);
                                                                               changed_.notify_all();
                                                                             })),
      squares_(store.catalogue(), groups_),
      loss_scaler_(store, pipeline, options_.loss_scaling) {
  thread_ = std::thread([this] { run(); });
}

Updates::~Updates() { end(); }

void Updates::end() {
  stop(nullptr);
  if (thread_.joinable()) thread_.join();
}

void Updates::stop(std::exception_ptr error) {
  MutexLock lock(mutex_);
  stopped_ = true;
  if (!error_) error_ = std::move(error);
  changed_.notify_all();
}

void Updates::forward_ended(Version version, std::map<int, std::vector<std::byte>> buffers) {
  MutexLock lock(mutex_);
  step_at(version).end_forward(std::move(buffers));
  changed_.notify_all();
}

void Updates::round_ended(Version version, const std::vector<double>& losses) {
  MutexLock lock(mutex_);
  step_at(version).end_round(losses);
  changed_.notify_all();
}

PendingStep& Updates::step_at(Version version) {
  return steps_
      .try_emplace(version, version, store_.catalogue(), pipeline_, groups_, loss_scaler_.is_on(), records_steps())
      .first->second;
}

std::shared_ptr<StepOutcome> Updates::accept_step(Version version, Version used_version, StepRequest request) {
  MutexLock lock(mutex_);
  PendingStep& step = step_at(version);
  step.call(used_version, std::move(request));
  changed_.notify_all();
  return step.outcome();
}

void Updates::task_accepted(Version version, UseId use, bool gives_gradient) {
  MutexLock lock(mutex_);
  const GroupId group = group_of(use);
  step_at(version).hold(group);
  // The gradients of other nodes will come with that of the task.
  if (!gives_gradient || !store_.catalogue().workers_exchange() || store_.catalogue().owned(group).is_empty()) return;
  for (int i = 1; i < store_.catalogue().place().num_nodes; ++i)
    step_at(version).hold(group, PendingStep::Holder::kOtherNodes);
}

void Updates::task_committed(Version version, UseId use) {
  MutexLock lock(mutex_);
  release(version, group_of(use));
}

void Updates::gradient_committed(Version version, const CommittedGradient& gradient, double square_sum) {
  MutexLock lock(mutex_);
  const GroupId group = group_of(gradient.use);
  if (!options_.adds_rounds) {
    PendingStep& step = step_at(version);
    step.set_gradient(gradient);
    // For a tied weight group, the sum over all uses is computed later.
    step.set_square_sum(group, square_sum);
    release(version, group);
    return;
  }
  if (store_.catalogue().workers_exchange()) return add_parts_of_nodes(version, gradient);
  // The task holds the group until its gradient is added.
  const ElementRange owned = store_.catalogue().owned(group);
  HeldGradient& held = held_[gradient.use];
  held = {.gradient = gradient, .num_holds = 1};
  if (exchange_ != nullptr) {
    ++held.num_holds;
    exchange_->send_gradient(gradient.use);
  }
  to_add_.push_back({.version = version,
                     .round = gradient.round,
                     .part = {.use = gradient.use,
                              .elements = owned,
                              .data = store_.gradient(gradient.use).data() +
                                      owned.begin * dtype_bytes(store_.catalogue().weight_groups()[group].dtype)}});
  changed_.notify_all();
}

void Updates::release(Version version, GroupId group, PendingStep::Holder holder) {
  if (step_at(version).release(group, holder)) changed_.notify_all();
}

// The sum of a group belongs to one step until that step is applied to the group. In an
// asynchronous run, the next step may have gradients before that.
std::deque<Updates::PartToAdd>::iterator Updates::addable() {
  return std::ranges::find_if(to_add_, [this](const PartToAdd& part) RP_REQUIRES(mutex_) {
    return updated_[group_of(part.part.use)] + 1 >= part.version &&
           step_at(part.version).is_next(part.part.use, part.round, part.part.elements);
  });
}

// Returns what the thread waits for: the gradients of a step that was called, or the next step.
Wait Updates::missing() {
  if (steps_.empty() && num_sends_of_weights_ > 0) return {.kind = WaitKind::kNodeReceipt};
  if (steps_.empty() || !steps_.begin()->second.is_called()) {
    return {.kind = WaitKind::kNextStep, .numbers = {static_cast<std::int64_t>(version_.value())}};
  }
  const auto& [version, step] = *steps_.begin();
  const auto number = static_cast<std::int64_t>(version.value());
  const auto num_groups = static_cast<std::int64_t>(groups_.size());
  if (step.squares_are_summed() && !step.squares_are_known())
    return {.kind = WaitKind::kNodeSquares, .numbers = {number}};
  if (step.all_are_taken())
    return {.kind = WaitKind::kNodeWeights, .numbers = {number, step.num_published(), num_groups}};
  return {.kind = step.waits_for_other_nodes() ? WaitKind::kNodeGradients : WaitKind::kGradients,
          .numbers = {number, step.num_ready(), num_groups}};
}

void Updates::run() {
  pthread_setname_np(pthread_self(), "rp-updates");
  MutexLock lock(mutex_);
  while (true) {
    if (stopped_) return;
    if (take_events()) continue;  // more may have happened meanwhile
    if (addable() != to_add_.end()) {
      waits_.publish_none();
      add_one_gradient();
    } else if (can_update()) {
      waits_.publish_none();
      update();
    } else {
      waits_.publish(missing());
      changed_.wait(mutex_);
    }
  }
}

void Updates::add_one_gradient() {
  const auto place = addable();
  const PartToAdd adding = *place;
  to_add_.erase(place);
  const UseId use = adding.part.use;
  mutex_.unlock();
  const std::int64_t since = trace_begin();
  updater_->add_to_sum(adding.part, adding.round == 0);
  beat();
  trace_end(TraceKind::kAddGradient, adding.version, group_of(use), since);
  mutex_.lock();
  PendingStep& step = step_at(adding.version);
  step.add(use, adding.part.elements);
  if (adding.received) exchange_->give_back(*adding.received);
  if (!step.is_last(use, adding.part.elements)) return;
  if (!adding.received) drop_hold(use);
  if (!stopped_) release(adding.version, group_of(use), adding.holder);
}

void Updates::drop_hold(UseId use) {
  const auto held = held_.find(use);
  if (--held->second.num_holds > 0) return;
  const CommittedGradient gradient = held->second.gradient;
  held_.erase(held);
  mutex_.unlock();
  (void)give_back({&gradient, 1});
  mutex_.lock();
}

void Updates::finish_norm(PendingStep& step) {
  step.finish_norm(loss_scaler_.scale_of(step.used_version()));
  step.outcome()->is_final = !records_steps();
  changed_.notify_all();
}

void Updates::sum_squares(Version version, GroupId group) {
  mutex_.unlock();
  const std::int64_t since = trace_begin();
  updater_->sum_squares(group, squares_.own(group));
  beat();
  trace_end(TraceKind::kNorm, version, group, since);
  mutex_.lock();
}

std::vector<CommittedGradient> Updates::taken_by(GroupId group, const PendingStep& step) const {
  if (options_.adds_rounds) return {};  // each was released when it was added
  return step.gradients_of(group);
}

bool Updates::give_back(std::span<const CommittedGradient> gradients) {
  try {
    for (const CommittedGradient& gradient : gradients) check_gradient(store_, gradient.use, gradient.checksum);
  } catch (const Error&) {
    options_.report_failure(std::current_exception());  // this calls stop()
    return false;
  }
  for (const CommittedGradient& gradient : gradients)
    store_.gradient_released(gradient.use).publish(gradient.released_after);
  return true;
}

void Updates::update() {
  const Version version = steps_.begin()->first;
  PendingStep& step = steps_.begin()->second;
  if (step.is_barrier() && !step.norm_is_known()) {
    if (!step.squares_are_summed()) {
      for (const GroupId group : groups_) {
        if (computes_squares(group)) sum_squares(version, group);
      }
      exchange_squares(step);
    }
    if (!step.squares_are_known()) return;
    finish_norm(step);
    step.move_to(StepState::kNormKnown);
    loss_scaler_.publish(version, step.outcome()->skipped);
  }
  if (groups_.empty()) return end_step(version, step);
  if (!step.is(StepState::kUpdating)) {
    if (records_steps()) {
      if (!record(version, step)) return;
      step.outcome()->is_final = true;
      changed_.notify_all();
    }
    step.move_to(StepState::kUpdating);
  }
  if (step.function()) {
    update_by_function(version, step);
  } else {
    update_one_group(version, step);
  }
}

void Updates::update_one_group(Version version, PendingStep& step) {
  const GroupId group = step.take_ready();
  const std::vector<UpdateSpan> rules = step.rules_of(group, num_applied_ + 1);
  const bool moves_weights = exchange_ != nullptr && !rules.empty();
  const auto taken = taken_by(group, step);
  const auto snapshot = snapshot_before(version);
  if (!step.norm_is_known() && computes_squares(group)) sum_squares(version, group);
  mutex_.unlock();
  wait_saved(snapshot.get(), group);
  const std::int64_t since = trace_begin();
  stamps_.begin(group, version);
  if (moves_weights) exchange_->receive_weights(group, version);
  RP_CRASH_POINT("coordinator.update.begins");
  updater_->update(group, version, rules);
  RP_CRASH_POINT("coordinator.update.updates");
  beat();
  trace_end(TraceKind::kUpdate, version, group, since);
  if (!moves_weights) publish(group, version);
  const bool is_sound = give_back(taken);
  RP_CRASH_POINT("coordinator.update.has_released");
  mutex_.lock();
  if (!is_sound) return;
  updated_[group] = version;
  if (step.all_are_taken() && !step.squares_are_summed()) exchange_squares(step);
  if (moves_weights) return send_weights(group, version);
  step.count_published();
  end_step_if_complete(version, step);
}

void Updates::publish(GroupId group, Version version) {
  stamps_.complete(group, version);
  if (options_.journal != nullptr)
    options_.journal->applied(group).publish(version);  // before its gradient is released
  RP_CRASH_POINT("coordinator.update.is_applied");
  store_.published(group).publish(version);
  RP_CRASH_POINT("coordinator.update.is_published");
}

void Updates::update_by_function(Version version, PendingStep& step) {
  const UpdateStep scaling = step.scaling();
  const WholeUpdate& function = step.function();
  const bool skipped = step.outcome()->skipped;
  std::vector<CommittedGradient> taken;
  std::map<GroupId, std::vector<UpdateSpan>> corrections;  // which the function does not change
  for (const GroupId group : groups_) {
    for (const CommittedGradient& gradient : taken_by(group, step)) taken.push_back(gradient);
    if (store_.catalogue().weight_groups()[group].is_correction != 0)
      corrections[group] = step.rules_of(group, num_applied_ + 1);
  }
  const auto snapshot = snapshot_before(version);
  mutex_.unlock();
  for (const GroupId group : groups_) wait_saved(snapshot.get(), group);
  const auto write = [&](GroupId group, float* gradient) {
    updater_->write_gradient(group, scaling, gradient);
    beat();
  };
  for (const GroupId group : groups_) stamps_.begin(group, version);
  std::exception_ptr error;
  const std::int64_t since = trace_begin();
  try {
    function(version, skipped, write);
    for (const auto& [group, rules] : corrections) updater_->update(group, version, rules);
  } catch (...) {
    error = std::current_exception();
  }
  if (error) {
    options_.report_failure(error);  // this calls stop()
    mutex_.lock();
    return;
  }
  if (options_.trace != nullptr) options_.trace->function(version, since);
  for (const GroupId group : groups_) {
    stamps_.complete(group, version);
    store_.published(group).publish(version);
  }
  const bool is_sound = give_back(taken);
  mutex_.lock();
  if (!is_sound) return;
  for (const GroupId group : groups_) updated_[group] = version;
  end_step(version, step);
}

void Updates::end_step_if_complete(Version version, PendingStep& step) {
  if (step.is_complete()) end_step(version, step);
}

void Updates::end_step(Version version, PendingStep& step) {
  if (!step.norm_is_known()) finish_norm(step);
  RP_CRASH_POINT("coordinator.step.is_applied");
  step.move_to(StepState::kApplied);
  if (!step.outcome()->skipped) ++num_applied_;
  version_ = version;
  if (kept_.version == version && kept_.snapshot != nullptr) kept_.history = history();
  steps_.erase(steps_.begin());
  changed_.notify_all();
}

void Updates::wait_applied(Version version) {
  MutexLock lock(mutex_);
  const auto is_applied = [&]() RP_REQUIRES(mutex_) { return version_ >= version && num_sends_of_weights_ == 0; };
  while (!is_applied() && !stopped_) changed_.wait(mutex_);
  if (!is_applied() && error_) std::rethrow_exception(error_);
}

const StepOutcome& Updates::wait_norm(const StepOutcome& outcome) {
  MutexLock lock(mutex_);
  while (!outcome.is_final && !stopped_) changed_.wait(mutex_);
  if (!outcome.is_final && error_) std::rethrow_exception(error_);
  return outcome;
}

}  // namespace rp
