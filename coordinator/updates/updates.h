// coordinator/updates/updates.h
// Applies the optimizer steps of one pipeline: decides when each weight group is updated, updates
// it, and publishes the new version.
//
// Its own thread takes weight groups as their gradients become final and lets a GroupUpdater update
// each. The rules (docs/design/protocol.md):
// - A group is updated when step() was called and every task that uses the group and was accepted
//   before is committed. Tasks of evaluations count, too: they may still read the copy that is
//   overwritten.
// - If the step needs all gradients first (it clips by norm, scales the loss, may be skipped, or is
//   a function), this must hold for all groups before the first one is updated.
// - Of several groups that may be updated, the first one in layer order is taken, since the next
//   round needs it first.
// - After the update, published(group) becomes the version that the step makes, and
//   gradient_released(use) releases the gradients of the uses.
// - If a step may have several rounds, each committed gradient is added to an fp32 sum first, and
//   its buffer is released at once. The sum belongs to the next step once this step is applied to
//   the group.
// - If the run has several nodes, gradients of all nodes are added, in the order of the rounds, to
//   the sums of the elements that this node owns, and it updates these. A group is published when
//   the other parts of its new weights have arrived. The thread never waits for the network
//   (docs/design/several-nodes.md).
//
// A step with a function instead of rules is applied to all groups at once, by the function.
//
// Steps are identified by the version of the weights that they make. Groups are the trained weight
// groups of one pipeline.
//
// Owned by a PipelineState. The Coordinator may call it while it holds its own mutex. The Store
// must outlive it.
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
#include <vector>

#include "common/mutex.h"
#include "coordinator/exchange/node_exchange.h"
#include "coordinator/updates/chunk_squares.h"
#include "coordinator/updates/group_updater.h"
#include "coordinator/updates/loss_scaler.h"
#include "coordinator/updates/pending_step.h"
#include "coordinator/updates/state_snapshot.h"
#include "coordinator/updates/step_record.h"
#include "coordinator/updates/step_request.h"
#include "coordinator/updates/update_trace.h"
#include "coordinator/updates/weight_stamps.h"
#include "hoststore/records/fault_board.h"
#include "hoststore/records/wait_record.h"
#include "hoststore/step_journal.h"
#include "hoststore/store.h"
#include "roundpipe/optimizer.h"

namespace rp {

struct UpdatesOptions {
  int num_threads = 1;
  bool adds_rounds = false;  // steps may have several rounds; the store has fp32 sums of gradients
  std::optional<LossScaling> loss_scaling{};
  // Called with the exception that the function of a step throws, or with a violation of
  // consistency; the run cannot continue then.
  std::function<void(std::exception_ptr)> report_failure{};
  WaitRecord waits{};                      // of the updates thread
  std::optional<FaultBoardEntry> board{};  // counts each group that is done as an advance
  UpdateTrace* trace = nullptr;            // records what the updates thread does; may be nullptr
  GroupUpdaterMaker make_updater{};        // empty: updates the groups in host memory
  StepJournal* journal = nullptr;          // records steps there, so that another coordinator can go on; may be nullptr
  NodeNetwork* network = nullptr;          // to the other nodes; nullptr if there are none. REQUIRES: adds_rounds
};

class Updates {
 public:
  Updates(Store& store, std::uint32_t pipeline, UpdatesOptions options);
  ~Updates();
  Updates(const Updates&) = delete;
  Updates& operator=(const Updates&) = delete;

  // Continues with the weights in the store as `version`, and publishes it. REQUIRES: `version` is
  // larger than all versions before; nothing is in flight.
  void restart_at(Version version, const UpdateHistory& history);

  // Finishes the updates of the step that makes `version`, from its record and the gradients in the store, and goes on
  // behind it. Returns the number of weight groups that were left. REQUIRES: options.journal is that of the coordinator
  // that has begun the step; called once, before anything is accepted.
  int recover(Version version, const StepRecord& record);
  // Records that the weights in the store are complete, with nothing in flight. `record`: without its history.
  void record_weights(Version version, StepRecord record);
  // Returns true if steps are recorded: then round_ended() must be called.
  [[nodiscard]] bool records_steps() const { return options_.journal != nullptr && !groups_.empty(); }

  // Accepts the step that makes `version` from the gradients of rounds that computed with
  // `used_version`. A step that clips by norm, scales the loss, or has the option skip_nonfinite is
  // skipped if a gradient is not finite: weights and moments stay as they are.
  std::shared_ptr<StepOutcome> accept_step(Version version, Version used_version, StepRequest request);

  // Notes that a task with a use of a trained group was accepted, before the step that makes
  // `version`. `gives_gradient`: the task computes a gradient of the use.
  void task_accepted(Version version, UseId use, bool gives_gradient);
  // Note that the task is committed, without or with a gradient. REQUIRES: the rounds of a step are
  // committed in order.
  void task_committed(Version version, UseId use);
  void gradient_committed(Version version, const CommittedGradient& gradient, double square_sum);
  // Notes that another node computes this round of the step, before its gradients are needed.
  // REQUIRES: called in the order of the rounds, before accept_step().
  void round_elsewhere(int node, Version version, std::uint64_t round);

  // Note what the rounds of a step have left: the buffers, by layer, when the forward pass of a training round is
  // committed; the losses when all tasks of a round with gradients are, before its last gradients are committed.
  // REQUIRES: records_steps().
  void forward_ended(Version version, std::map<int, std::vector<std::byte>> buffers);
  void round_ended(Version version, const std::vector<double>& losses);

  // Preserves the state of `version`, the version of the last accepted step, in `snapshot`: later
  // updates copy what they are about to change. Stops preserving an earlier snapshot.
  void keep(Version version, std::shared_ptr<StateSnapshot> snapshot);
  // Blocks until the kept version is complete in all groups. Returns the history of the steps up to
  // it. May be called by another thread than keep().
  [[nodiscard]] UpdateHistory wait_kept();

  // Blocks until `version` is complete in all groups, and the other nodes have what this node owns of
  // it.
  void wait_applied(Version version);
  [[nodiscard]] const StepOutcome& wait_norm(const StepOutcome& outcome);

  // Drops all work that has not begun. All waits, present and later, end and throw `error` if it is
  // not null. The first call counts.
  void stop(std::exception_ptr error);
  // Calls stop() and waits until work that has begun is finished. The destructor calls it if
  // nothing else did.
  void end();

 private:
  // A part of a gradient that has arrived: from another node, or all that this node owns of a
  // gradient.
  struct PartToAdd {
    Version version{};
    std::uint64_t round = 0;
    GroupUpdater::GradientPart part{};
    PendingStep::Holder holder = PendingStep::Holder::kThisNode;
    std::optional<ReceivedGradient> received{};  // in a buffer of the NodeExchange; otherwise it is in the store
  };
  // A gradient buffer of this node that is not yet added, or not yet sent to all nodes.
  struct HeldGradient {
    CommittedGradient gradient{};
    int num_holds = 0;
  };

  void run();
  // Returns the time at which a pass over a group begins, for trace_end().
  [[nodiscard]] std::int64_t trace_begin() const { return options_.trace != nullptr ? options_.trace->now() : 0; }
  // Publishes that a group is done, so that threads that wait for its weights know that the run
  // progresses.
  void beat() const {
    SequenceWord& heartbeat = store_.update_heartbeat(pipeline_);
    heartbeat.publish_quietly(heartbeat.observe() + 1);
    if (options_.board) FaultBoardEntry(*options_.board).publish_advance();
  }
  void trace_end(TraceKind kind, Version version, GroupId group, std::int64_t since) const {
    if (options_.trace != nullptr) options_.trace->group(kind, version, group, since);
  }
  [[nodiscard]] Wait missing() RP_REQUIRES(mutex_);
  [[nodiscard]] PendingStep& step_at(Version version) RP_REQUIRES(mutex_);
  // Returns the first part of a gradient in to_add_ that may be added now, or the end.
  [[nodiscard]] std::deque<PartToAdd>::iterator addable() RP_REQUIRES(mutex_);
  [[nodiscard]] bool can_update() RP_REQUIRES(mutex_) { return !steps_.empty() && steps_.begin()->second.can_update(); }
  void release(Version version, GroupId group, PendingStep::Holder holder = PendingStep::Holder::kThisNode)
      RP_REQUIRES(mutex_);
  void add_parts_of_nodes(Version version, const CommittedGradient& gradient) RP_REQUIRES(mutex_);
  // Returns the error for a node whose program has made other calls, or nullptr.
  [[nodiscard]] std::exception_ptr difference_of_calls();
  [[nodiscard]] GroupId group_of(UseId use) const { return store_.catalogue().uses()[use].group; }

  // The work of the exchange between nodes. Returns false if nothing has happened since the last call.
  bool take_events() RP_REQUIRES(mutex_);
  void note(const ReceivedGradient& gradient) RP_REQUIRES(mutex_);
  void note(const SentGradient& sent) RP_REQUIRES(mutex_);
  void note(const SentWeights& sent) RP_REQUIRES(mutex_);
  void note(const ReceivedWeights& received) RP_REQUIRES(mutex_);
  void note(const ReceivedSquares& received) RP_REQUIRES(mutex_);

  // Each performs a piece of the thread's work, and releases the mutex while memory is read and
  // written.
  void add_one_gradient() RP_REQUIRES(mutex_);
  void update() RP_REQUIRES(mutex_);
  // Returns false if the run ends because the record cannot be written.
  [[nodiscard]] bool record(Version version, const PendingStep& step) RP_REQUIRES(mutex_);
  void update_one_group(Version version, PendingStep& step) RP_REQUIRES(mutex_);
  void update_by_function(Version version, PendingStep& step) RP_REQUIRES(mutex_);
  // Returns true if the squares of a group are summed here, not by the workers.
  [[nodiscard]] bool computes_squares(GroupId group) const {
    return options_.adds_rounds || store_.catalogue().weight_groups()[group].num_uses > 1;
  }
  void sum_squares(Version version, GroupId group) RP_REQUIRES(mutex_);
  // Notes that the squares of all groups are summed, and sends them to the other nodes.
  void exchange_squares(PendingStep& step) RP_REQUIRES(mutex_);
  void finish_norm(PendingStep& step) RP_REQUIRES(mutex_);
  void send_weights(GroupId group, Version version) RP_REQUIRES(mutex_);
  // Makes a version of a group visible to the workers, once it is complete.
  void publish(GroupId group, Version version) RP_EXCLUDES(mutex_);
  // Ends the step if all of its groups are published and its norm is known.
  void end_step_if_complete(Version version, PendingStep& step) RP_REQUIRES(mutex_);
  // Returns the gradients to release after an update of this group.
  [[nodiscard]] std::vector<CommittedGradient> taken_by(GroupId group, const PendingStep& step) const
      RP_REQUIRES(mutex_);
  // Notes that a gradient in held_ was added, or that it was sent to the other nodes. Gives it back if
  // both are done.
  void drop_hold(UseId use) RP_REQUIRES(mutex_);
  // Checks that the gradients, which were read, are still as they were committed, and releases
  // them. Returns false if they have changed; the run ends then.
  [[nodiscard]] bool give_back(std::span<const CommittedGradient> gradients);
  void end_step(Version version, PendingStep& step) RP_REQUIRES(mutex_);  // destroys `step`
  [[nodiscard]] UpdateHistory history() const RP_REQUIRES(mutex_);
  void go_on_at(Version version, const UpdateHistory& history) RP_REQUIRES(mutex_);
  // Returns the snapshot that an update to `version` must not change; may be null.
  [[nodiscard]] std::shared_ptr<StateSnapshot> snapshot_before(Version version) const RP_REQUIRES(mutex_);
  // Blocks until the group may be changed. `snapshot`: from snapshot_before().
  void wait_saved(StateSnapshot* snapshot, GroupId group);

  struct Kept {
    Version version{};
    std::shared_ptr<StateSnapshot> snapshot;
    std::optional<UpdateHistory> history;  // set once the version is complete
  };

  Store& store_;
  const std::uint32_t pipeline_;
  const UpdatesOptions options_;
  const std::vector<GroupId> groups_;  // the trained groups
  WeightStamps stamps_;
  WaitRecord waits_;
  const std::unique_ptr<GroupUpdater> updater_;   // used only by the updates thread
  const std::unique_ptr<NodeExchange> exchange_;  // nullptr if there is one node
  ChunkSquares squares_;                          // of the oldest step; used only by the updates thread

  Mutex mutex_;
  CondVar changed_;
  // Steps that have begun and are not applied, by version.
  std::map<Version, PendingStep> steps_ RP_GUARDED_BY(mutex_);
  std::deque<PartToAdd> to_add_ RP_GUARDED_BY(mutex_);
  std::map<UseId, HeldGradient> held_ RP_GUARDED_BY(mutex_);
  std::map<GroupId, Version> updated_ RP_GUARDED_BY(mutex_);  // of what this node owns of each group
  int num_sends_of_weights_ RP_GUARDED_BY(mutex_) = 0;
  Version version_ RP_GUARDED_BY(mutex_){};              // the newest version that is complete in all groups
  std::uint64_t num_applied_ RP_GUARDED_BY(mutex_) = 0;  // steps that were not skipped
  LossScaler loss_scaler_ RP_GUARDED_BY(mutex_);
  Kept kept_ RP_GUARDED_BY(mutex_);
  bool has_run_function_ RP_GUARDED_BY(mutex_) = false;  // only this process knows what led to these weights
  bool stopped_ RP_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ RP_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace rp
