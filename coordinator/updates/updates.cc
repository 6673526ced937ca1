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

void Updates::restart_at(Version version, const UpdateHistory& history) {
  MutexLock lock(mutex_);
  RP_ASSERT(version > version_);
  // A step may have begun with tasks of evaluations, which are done.
  for (const auto& [_, step] : steps_) RP_ASSERT(!step.is_called());
  steps_.clear();
  if (options_.journal != nullptr)
    options_.journal->invalidate(static_cast<int>(pipeline_));  // the weights are written now
  go_on_at(version, history);
}

void Updates::go_on_at(Version version, const UpdateHistory& history) {
  version_ = version;
  num_applied_ = history.num_applied;
  loss_scaler_.restart_at(version, history.loss_scale);
  for (const GroupId group : groups_) store_.published(group).publish(version);
}

// The pass that was under way comes first: the next one overwrites what is known of it.
int Updates::recover(Version version, const StepRecord& record) {
  MutexLock lock(mutex_);
  StepJournal& journal = *options_.journal;
  const std::optional<GroupId> under_way = updater_->unfinished(version);
  int num_left = 0;
  const auto finish = [&](GroupId group) {
    if (journal.applied(group).observe() >= version) return;
    const auto place = std::find(groups_.begin(), groups_.end(), group) - groups_.begin();
    updater_->update(group, version, record.rules.empty() ? std::vector<UpdateSpan>() : record.rules[place]);
    ++num_left;
    beat();
    journal.applied(group).publish(version);
  };
  if (under_way) finish(*under_way);
  for (const GroupId group : groups_) finish(group);
  go_on_at(version, record.history);
  return num_left;
}

void Updates::record_weights(Version version, StepRecord record) {
  MutexLock lock(mutex_);
  has_run_function_ = false;
  record.history = history();
  for (const GroupId group : groups_) options_.journal->applied(group).publish(version);
  options_.journal->write(static_cast<int>(pipeline_), version, record.to_bytes());
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

UpdateHistory Updates::history() const {
  return {.num_applied = num_applied_, .loss_scale = loss_scaler_.history(version_)};
}

void Updates::keep(Version version, std::shared_ptr<StateSnapshot> snapshot) {
  MutexLock lock(mutex_);
  RP_ASSERT(version_ <= version);
  kept_ = {.version = version, .snapshot = std::move(snapshot), .history = {}};
  if (version_ == version) kept_.history = history();
}

UpdateHistory Updates::wait_kept() {
  MutexLock lock(mutex_);
  while (!kept_.history && !stopped_) changed_.wait(mutex_);
  if (!kept_.history)
    std::rethrow_exception(error_ ? error_
                                  : std::make_exception_ptr(Error(ExitCode::kUserError, "the session has ended")));
  return *kept_.history;
}

std::shared_ptr<StateSnapshot> Updates::snapshot_before(Version version) const {
  return version > kept_.version ? kept_.snapshot : nullptr;
}

void Updates::wait_saved(StateSnapshot* snapshot, GroupId group) {
  if (snapshot == nullptr) return;
  snapshot->before_update(group, [&] {
    waits_.publish_once({.kind = WaitKind::kStateSaved, .numbers = {group.value()}});
    beat();
  });
  waits_.publish_none();
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

void Updates::task_accepted(Version version, UseId use) {
  MutexLock lock(mutex_);
  step_at(version).open(use);
}

void Updates::task_committed(Version version, UseId use) {
  MutexLock lock(mutex_);
  close(step_at(version), use);
}

void Updates::gradient_committed(Version version, UseId use, std::uint64_t released_after, double square_sum,
                                 std::uint64_t checksum) {
  MutexLock lock(mutex_);
  PendingStep& step = step_at(version);
  const CommittedGradient gradient{.use = use, .released_after = released_after, .checksum = checksum};
  step.set_gradient(gradient);
  if (options_.adds_rounds) {
    to_add_.emplace_back(version, gradient);  // the task counts as open until its gradient is added
    changed_.notify_all();
    return;
  }
  step.set_square_sum(store_.catalogue().uses()[use].group,
                      square_sum);  // for a tied weight group the sum over all uses is computed later
  close(step, use);
}

void Updates::close(PendingStep& step, UseId use) {
  if (step.close(use)) changed_.notify_all();
}

// The sum of a group belongs to one step until that step is applied to the group. In an
// asynchronous run, the next step may have gradients before that.
bool Updates::can_add() {
  if (to_add_.empty()) return false;
  const auto& [version, gradient] = to_add_.front();
  return store_.published(store_.catalogue().uses()[gradient.use].group).observe() + 1 >= version;
}

// Returns what the thread waits for: the gradients of a step that was called, or the next step.
Wait Updates::missing() {
  if (steps_.empty() || !steps_.begin()->second.is_called()) {
    return {.kind = WaitKind::kNextStep, .numbers = {static_cast<std::int64_t>(version_.value())}};
  }
  const auto& [version, step] = *steps_.begin();
  return {.kind = WaitKind::kGradients,
          .numbers = {static_cast<std::int64_t>(version.value()), step.num_ready(),
                      static_cast<std::int64_t>(groups_.size())}};
}

void Updates::run() {
  pthread_setname_np(pthread_self(), "rp-updates");
  MutexLock lock(mutex_);
  while (true) {
    while (!stopped_ && !can_add() && !can_update()) {
      waits_.publish(missing());
      changed_.wait(mutex_);
    }
    if (stopped_) return;
    waits_.publish_none();
    if (can_add()) {
      add_one_gradient();
    } else {
      update();
    }
  }
}

void Updates::add_one_gradient() {
  const auto [version, gradient] = to_add_.front();
  to_add_.pop_front();
  PendingStep& step = step_at(version);
  const bool begins = step.mark_summed(gradient.use);
  mutex_.unlock();
  const std::int64_t since = trace_begin();
  updater_->add_to_sum(gradient.use, begins);
  beat();
  trace_end(TraceKind::kAddGradient, version, store_.catalogue().uses()[gradient.use].group, since);
  const bool is_sound = give_back({&gradient, 1});
  mutex_.lock();
  if (is_sound) close(step, gradient.use);
}

void Updates::finish_norm(PendingStep& step) {
  step.finish_norm(loss_scaler_.scale_of(step.used_version()));
  step.outcome()->is_final = !records_steps();
  changed_.notify_all();
}

void Updates::finish_norms_of_groups(Version version, PendingStep& step) {
  for (const GroupId group : groups_) {
    if (!options_.adds_rounds && store_.catalogue().weight_groups()[group].num_uses == 1)
      continue;  // the workers have computed it
    mutex_.unlock();
    const std::int64_t since = trace_begin();
    const double sum = updater_->square_sum(group);
    beat();
    trace_end(TraceKind::kNorm, version, group, since);
    mutex_.lock();
    step.set_square_sum(group, sum);
  }
  finish_norm(step);
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
    finish_norms_of_groups(version, step);
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

// The record is complete before the first group changes.
bool Updates::record(Version version, const PendingStep& step) {
  StepJournal& journal = *options_.journal;
  has_run_function_ = has_run_function_ || step.function();
  if (has_run_function_) {
    journal.invalidate(static_cast<int>(pipeline_));
    return true;
  }
  const StepRequest& request = step.request();
  StepRecord record{.steps = request.steps,
                    .rounds = request.rounds,
                    .history = {.num_applied = num_applied_ + (step.outcome()->skipped ? 0 : 1),
                                .loss_scale = loss_scaler_.history(version)},
                    .outcome = *step.outcome(),
                    .results = step.results(),
                    .restart_data = request.options.restart_data};
  if (!step.outcome()->skipped) {
    for (const GroupId group : groups_) record.rules.push_back(step.rules_of(group, num_applied_ + 1));
  }
  std::exception_ptr error;
  mutex_.unlock();
  try {
    RP_CRASH_POINT("coordinator.step.records");
    journal.write(static_cast<int>(pipeline_), version, record.to_bytes());
    RP_CRASH_POINT("coordinator.step.has_recorded");
  } catch (const Error&) {  // no memory
    error = std::current_exception();
    options_.report_failure(error);  // this calls stop()
  }
  mutex_.lock();
  return error == nullptr;
}

void Updates::update_one_group(Version version, PendingStep& step) {
  const GroupId group = step.take_ready();
  const std::vector<UpdateSpan> rules = step.rules_of(group, num_applied_ + 1);
  const bool needs_sum =
      !step.norm_is_known() && (options_.adds_rounds || store_.catalogue().weight_groups()[group].num_uses > 1);
  const auto taken = taken_by(group, step);
  const auto snapshot = snapshot_before(version);
  mutex_.unlock();
  wait_saved(snapshot.get(), group);
  const std::int64_t since = trace_begin();
  const double sum = needs_sum ? updater_->square_sum(group) : 0;
  stamps_.begin(group, version);
  RP_CRASH_POINT("coordinator.update.begins");
  updater_->update(group, version, rules);
  RP_CRASH_POINT("coordinator.update.updates");
  beat();
  trace_end(TraceKind::kUpdate, version, group, since);
  stamps_.complete(group, version);
  if (options_.journal != nullptr)
    options_.journal->applied(group).publish(version);  // before its gradient is released
  RP_CRASH_POINT("coordinator.update.is_applied");
  store_.published(group).publish(version);
  RP_CRASH_POINT("coordinator.update.is_published");
  const bool is_sound = give_back(taken);
  RP_CRASH_POINT("coordinator.update.has_released");
  mutex_.lock();
  if (!is_sound) return;
  if (needs_sum) step.set_square_sum(group, sum);
  if (step.count_updated()) end_step(version, step);
}

void Updates::update_by_function(Version version, PendingStep& step) {
  const UpdateStep scaling = step.scaling();
  const WholeUpdate& function = step.function();
  const bool skipped = step.outcome()->skipped;
  std::vector<CommittedGradient> taken;
  for (const GroupId group : groups_) {
    for (const CommittedGradient& gradient : taken_by(group, step)) taken.push_back(gradient);
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
  end_step(version, step);
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
  while (version_ < version && !stopped_) changed_.wait(mutex_);
  if (version_ < version && error_) std::rethrow_exception(error_);
}

const StepOutcome& Updates::wait_norm(const StepOutcome& outcome) {
  MutexLock lock(mutex_);
  while (!outcome.is_final && !stopped_) changed_.wait(mutex_);
  if (!outcome.is_final && error_) std::rethrow_exception(error_);
  return outcome;
}

}  // namespace rp
