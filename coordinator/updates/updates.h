// coordinator/updates/updates.h
// The optimizer's part of a step: when which weights are updated, and who may go on then.
//
// A thread of its own takes weight groups as their gradients become final and has each updated by a GroupUpdater.
// Order (docs/design/protocol.md): a group is updated when step() was called and every task that was accepted before
// and uses it is committed, those of evaluations too: they may still read the copy that is overwritten. Where the step
// needs all gradients first (it clips by norm, scales the loss, may be skipped, or is a function): when that holds for
// all groups. Of several that may be, the first in layer order, which the next round needs first. Then published(group)
// = the version that the step makes, and gradient_released(use) gives the uses' gradients back. Where a step may have
// several rounds each committed gradient is added to an fp32 sum first and given back at once; the sum is the next
// step's once this one is applied to the group.
//
// A step with a function instead of rules is applied to all groups at once, by the function.
//
// Steps are named by the version of the weights that they make. Groups are those of one pipeline that are trained.
//
// Owned by the Coordinator, which may call it with its own mutex held. The Store must outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "coordinator/updates/emulated_group_updater.h"
#include "coordinator/updates/group_updater.h"
#include "coordinator/updates/loss_scaler.h"
#include "coordinator/updates/pending_step.h"
#include "coordinator/updates/state_snapshot.h"
#include "coordinator/updates/step_request.h"
#include "coordinator/updates/update_trace.h"
#include "coordinator/updates/weight_stamps.h"
#include "hoststore/records/wait_record.h"
#include "hoststore/store.h"
#include "roundpipe/optimizer.h"

namespace rp {

struct UpdatesOptions {
  int num_threads = 1;
  bool adds_rounds = false;  // steps may have several rounds; the store has sums
  std::optional<LossScaling> loss_scaling{};
  // Told what the function of a step throws; the run cannot go on then.
  std::function<void(std::exception_ptr)> report_failure{};
  WaitRecord waits{};                         // of its thread
  UpdateTrace* trace = nullptr;               // what its thread did goes there; may be absent
  std::optional<HostMemoryModel> emulated{};  // updates take time only, and touch nothing
};

class Updates {
 public:
  Updates(Store& store, std::uint32_t pipeline, UpdatesOptions options);
  ~Updates();
  Updates(const Updates&) = delete;
  Updates& operator=(const Updates&) = delete;

  // The weights in the store are `version`, above all before; nothing is in flight. Publishes it.
  void restart_at(std::uint64_t version, const UpdateHistory& history);

  // step() was called for the step that makes `version` from gradients of rounds that computed with `used_version`. A
  // step that clips by norm, scales the loss or is told to is skipped if a gradient is not finite: weights and moments
  // stay.
  std::shared_ptr<StepOutcome> accept_step(std::uint64_t version, std::uint64_t used_version, StepRequest request);

  // A task that uses a trained group was accepted before the step that makes `version`.
  void task_accepted(std::uint64_t version, std::uint32_t use);
  // It is committed: without a gradient, or with one. Rounds of a step come in order.
  void task_committed(std::uint64_t version, std::uint32_t use);
  // `checksum`: of the gradient, in a run that checks its consistency.
  void gradient_committed(std::uint64_t version, std::uint32_t use, std::uint64_t released_after, double square_sum,
                          std::uint64_t checksum = 0);

  // Later updates leave `snapshot` as it is: what was there before them is copied. `version`: that of the last accepted
  // step. Ends the keeping of another one.
  void keep(std::uint64_t version, std::shared_ptr<StateSnapshot> snapshot);
  // Waits until the kept version is there in all groups; what the steps up to it have left. May be another thread's
  // than keep().
  [[nodiscard]] UpdateHistory wait_kept();

  // Waits until `version` is there in all groups.
  void wait_applied(std::uint64_t version);
  [[nodiscard]] const StepOutcome& wait_norm(const StepOutcome& outcome);

  // What is not begun is dropped; waiters, present and later, get `error`. The first call counts.
  void stop(std::exception_ptr error);
  // stop(), and waits for what is begun. The destructor's, if it was not called.
  void end();

 private:
  void run();
  // Of a pass over a group: when it begins, and that it has ended.
  [[nodiscard]] std::int64_t trace_begin() const { return options_.trace != nullptr ? options_.trace->now() : 0; }
  // A group is done: the run goes on, whoever waits for its weights.
  void beat() const {
    SequenceWord& heartbeat = store_.update_heartbeat(pipeline_);
    heartbeat.publish_quietly(heartbeat.observe() + 1);
  }
  void trace_end(TraceKind kind, std::uint64_t version, std::uint32_t group, std::int64_t since) const {
    if (options_.trace != nullptr) options_.trace->group(kind, version, group, since);
  }
  [[nodiscard]] Wait missing() RP_REQUIRES(mutex_);
  [[nodiscard]] PendingStep& step_at(std::uint64_t version) RP_REQUIRES(mutex_);
  [[nodiscard]] bool can_add() RP_REQUIRES(mutex_);
  [[nodiscard]] bool can_update() RP_REQUIRES(mutex_) { return !steps_.empty() && steps_.begin()->second.can_update(); }
  void close(PendingStep& step, std::uint32_t use) RP_REQUIRES(mutex_);
  // Each does a piece of work of the thread, with the mutex free while memory is read and written.
  void add_one_gradient() RP_REQUIRES(mutex_);
  void update() RP_REQUIRES(mutex_);
  void update_one_group(std::uint64_t version, PendingStep& step) RP_REQUIRES(mutex_);
  void update_by_function(std::uint64_t version, PendingStep& step) RP_REQUIRES(mutex_);
  void finish_norms_of_groups(std::uint64_t version, PendingStep& step) RP_REQUIRES(mutex_);
  void finish_norm(PendingStep& step) RP_REQUIRES(mutex_);
  // Gradients to give back after an update of this group.
  [[nodiscard]] std::vector<CommittedGradient> taken_by(std::uint32_t group, const PendingStep& step) const
      RP_REQUIRES(mutex_);
  // Gradients that were read are still what was committed, and are given back. False: they are not, and the run ends.
  [[nodiscard]] bool give_back(std::span<const CommittedGradient> gradients);
  void end_step(std::uint64_t version, PendingStep& step) RP_REQUIRES(mutex_);  // `step` is gone then
  [[nodiscard]] UpdateHistory history() const RP_REQUIRES(mutex_);
  // The snapshot that an update to `version` may not change; may be null.
  [[nodiscard]] std::shared_ptr<StateSnapshot> snapshot_before(std::uint64_t version) RP_REQUIRES(mutex_);
  // The group may be changed then. `snapshot`: as above.
  void wait_saved(StateSnapshot* snapshot, std::uint32_t group);

  struct Kept {
    std::uint64_t version = 0;
    std::shared_ptr<StateSnapshot> snapshot;
    std::optional<UpdateHistory> history;  // once the version is there
  };

  Store& store_;
  const std::uint32_t pipeline_;
  const UpdatesOptions options_;
  const std::vector<std::uint32_t> groups_;  // trained ones
  WeightStamps stamps_;
  WaitRecord waits_;
  const std::unique_ptr<GroupUpdater> updater_;  // used by the thread only

  Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, PendingStep> steps_ RP_GUARDED_BY(mutex_);  // begun, not applied
  std::deque<std::pair<std::uint64_t, CommittedGradient>> to_add_ RP_GUARDED_BY(mutex_);
  std::uint64_t version_ RP_GUARDED_BY(mutex_) = 0;      // there in all groups
  std::uint64_t num_applied_ RP_GUARDED_BY(mutex_) = 0;  // steps that were not skipped
  LossScaler loss_scaler_ RP_GUARDED_BY(mutex_);
  Kept kept_ RP_GUARDED_BY(mutex_);
  bool stopped_ RP_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ RP_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace rp
