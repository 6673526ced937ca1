// Implements the part of Updates with which a saved state, or another coordinator after the death of this one, goes on.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/system/crash_point.h"
#include "coordinator/updates/updates.h"
#include "roundpipe/error.h"

namespace rp {

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
  for (const GroupId group : groups_) {
    updated_[group] = version;
    store_.published(group).publish(version);
  }
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

}  // namespace rp
