// coordinator/coordinator.h
// Directs a run: decides which worker computes which stage, which results are final, and when
// weights change.
//
// Rounds are accepted in the caller's thread. A CommitThread follows the completions and moves the
// commit point over the slots, in slot order (docs/design/protocol.md). Both threads change the
// RoundFlow, which they share through the CoordinatorState. This class is the caller's side: its
// requests and its waits.
//
// Owned by the Runtime. The Store must outlive it. accept_*() and synchronize() must be called from
// one thread. Methods that are for any thread say so.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/commit_thread.h"
#include "coordinator/coordinator_state.h"
#include "coordinator/coordinator_trace.h"
#include "coordinator/exchange/communicator_ids.h"
#include "coordinator/exchange/round_group.h"
#include "coordinator/pipeline_state.h"
#include "coordinator/round_flow.h"
#include "coordinator/rounds/activation_budget.h"
#include "coordinator/rounds/input_blocks.h"
#include "coordinator/rounds/round.h"
#include "coordinator/run_plans/stage_plans.h"
#include "coordinator/updates/step_request.h"
#include "hoststore/records/wait_record.h"
#include "hoststore/store.h"

namespace rp {

struct CoordinatorOptions {
  int optimizer_threads = 1;
  std::vector<PipelineSettings> pipelines;
  std::optional<FaultBoardEntry> board{};  // the coordinator publishes its progress and its waits there
  TraceJournal* trace = nullptr;           // records what the coordinator's threads do; must outlive it
  std::function<void()> on_hang{};         // called by the commit thread before it fails because nothing progresses
  // Called by the commit thread for each task, in slot order, with the coordinator's mutex held.
  // Must be short, and must not call back.
  OnCommit on_commit{};
  OnSetAside on_set_aside{};         // called by the commit thread; needed only if set_aside() may be called
  GroupUpdaterMaker make_updater{};  // empty: steps update the weights in host memory
  NodeNetwork* network = nullptr;    // to the other nodes of the run; nullptr if there are none
};

class Coordinator {
 public:
  Coordinator(Store& store, CoordinatorOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Sets the buffers of a pipeline's layers before its first round, by layer, for the layers that
  // have buffers.
  void set_buffers(int pipeline, const std::map<int, BlockContents>& buffers);
  // Returns the newest buffers, or those after the last round that is part of a step; by layer.
  // REQUIRES: nothing in flight.
  enum class BuffersOf { kLastRound, kLastStep };
  [[nodiscard]] std::map<int, BlockOfRound> buffers(int pipeline, BuffersOf which);

  // Continues with a new version, which has `steps` steps and `rounds` rounds behind it; its
  // weights will be written to the store from outside. REQUIRES: nothing in flight, no round since
  // the last step.
  void restart_at(int pipeline, std::uint64_t steps, std::uint64_t rounds, const UpdateHistory& history);
  // Declares that the weights of restart_at() are written. `restart_data`: as of StepOptions.
  void finish_restart(int pipeline, const std::string& restart_data);
  // Finishes the last step of the coordinator that has left the store's journal, and continues after it. Returns the
  // number of weight groups that it had not updated. REQUIRES: the store was made from its remains; called once, before
  // anything else. Throws rp::Error (kUserError) if the journal has no record.
  int recover(int pipeline);
  // Preserves the state after the last accepted step in `snapshot`, whatever is accepted next. Only
  // one state is kept at a time.
  void keep_state(int pipeline, std::shared_ptr<StateSnapshot> snapshot) {
    at(pipeline).updates->keep(at(pipeline).version(), std::move(snapshot));
  }
  // Waits until the step of keep_state() is applied, and returns the history up to it. Throws the
  // error of fail() if the run fails before that. May be called by another thread.
  [[nodiscard]] UpdateHistory wait_kept_state(int pipeline) { return at(pipeline).updates->wait_kept(); }

  // Copies the inputs and dispatches the round. Blocks while two rounds of the pipeline are in
  // flight. Throws the error of fail(). Keeps blocks for the caller until drop(): the outputs and
  // the gradient of the inputs, as the traits request. If another node computes the round, it is
  // only counted, and has no blocks. REQUIRES on several nodes: a round gives only losses.
  std::shared_ptr<Round> accept_round(const RoundTraits& traits, const RoundInputs& inputs, const Plan* plan = nullptr);

  // Dispatches the backward pass of a round that keeps its graph. `gradients`: the gradients of the
  // round's outputs, by microbatch. REQUIRES: the round has had no backward pass; it has backward
  // stages; the pipeline's next step is still the round's step.
  void accept_backward(const std::shared_ptr<Round>& round, const std::vector<BlockContents>& gradients);
  // Declares that the round will have no backward pass. Does nothing if it has had one.
  void drop_graph(const std::shared_ptr<Round>& round);

  // Declares that the caller will not read a block again that was kept for it.
  void drop(const BlockOfRound& block);

  // Accepts the step that ends the rounds since the previous step. REQUIRES: rounds_since_step > 0.
  std::shared_ptr<StepOutcome> accept_step(int pipeline, StepRequest request);

  // Block until the losses and outputs of a round are final; until its last slot is committed.
  void wait_forward(const Round& round);
  void wait_all(const Round& round);
  // Returns the block of a microbatch and sets `bytes` to its size. REQUIRES: the block is kept for
  // the caller, and the caller has waited for it.
  [[nodiscard]] const std::byte* block(const Round& round, BlockRow row, int microbatch, std::uint64_t& bytes);

  // Blocks until `is_final` is set. Returns the outcome, which does not change any more.
  [[nodiscard]] const StepOutcome& wait_norm(int pipeline, const StepOutcome& outcome);

  // Blocks until the last accepted step is applied.
  void wait_step(int pipeline);
  // Blocks until everything that was accepted is committed and applied.
  void synchronize();
  // Makes the next forward pass without gradients compute with the newest weights, in an
  // asynchronous run, too.
  void use_newest_weights(int pipeline);

  // Calls synchronize() at the end of a run. Returns the run's failure if no call has thrown it
  // before.
  [[nodiscard]] std::exception_ptr finish();

  // Reports that a piece of a saved state was written. For any thread.
  void publish_written() {
    if (options_.board) FaultBoardEntry(*options_.board).publish_advance();
  }

  // Ends the workers and drops what is in flight. Nothing may be accepted afterwards. The
  // destructor calls it if nothing else did.
  void end();

  // Ends the run with a failure: every wait, present or later, throws `error`. The first call
  // counts. For any thread.
  void fail(const std::exception_ptr& error);

  // Notes that a worker has died: its tasks, and all that are not committed, are done again by the workers that are
  // left, or by one that takes its place. Such a worker joins as soon as it is ready. REQUIRES: nothing of the dead
  // worker writes to the store any more. For any thread.
  void lose_worker(int worker);

  // Computes neither this slot nor a later one from now on, because its task ends its workers; finishes everything
  // before it, and passes it to CoordinatorOptions::on_set_aside. Called before the loss of the last of these workers
  // is noted. For any thread.
  void set_aside(SlotNumber slot);

  // Returns the numbers of rounds, steps and versions that are accepted so far.
  [[nodiscard]] const PipelineState& pipeline_state(int pipeline) const { return *pipelines_[pipeline]; }
  [[nodiscard]] const RoundGroup& round_group() const { return round_group_; }
  [[nodiscard]] Plan plan(int pipeline, PlanKind kind);
  // Returns the times of the layers for one microbatch, smoothed over the rounds.
  [[nodiscard]] std::vector<LayerTiming> layer_times(int pipeline);
  // Returns the peaks of device memory so far, by worker; zeros for a worker whose memory is the
  // host's.
  [[nodiscard]] std::vector<DeviceMemoryPeaks> device_memory();
  // Returns the budget that follows from the rounds so far. It has no bytes before the first round
  // has ended.
  [[nodiscard]] ActivationBudget activation_budget(int pipeline);

 private:
  [[nodiscard]] PipelineState& at(int pipeline) { return *pipelines_[pipeline]; }
  [[nodiscard]] std::vector<std::unique_ptr<PipelineState>> make_pipelines();
  [[nodiscard]] WaitRecord traced_waits(CoordinatorThread thread);
  // Runs a wait for the updates. If the wait throws, marks the failure as known to the caller.
  template <typename Do>
  void wait_for_updates(const Wait& what, Do wait);
  void wait_for_flight(int pipeline);
  [[nodiscard]] bool is_own(int node) const { return node == store_.catalogue().place().node; }
  std::shared_ptr<Round> accept_elsewhere(const RoundTraits& traits, std::uint64_t call, int node);
  // Returns the plan that all nodes use for their next round with gradients.
  [[nodiscard]] Plan agreed_plan(PipelineState& state);
  [[nodiscard]] bool workers_exchange() const { return store_.catalogue().workers_exchange(); }
  // Returns a function for threads of the network, which have something that the caller's thread may wait for.
  [[nodiscard]] std::function<void()> waker();

  Store& store_;
  const CoordinatorOptions options_;
  InputBlocks inputs_;
  CoordinatorTrace trace_;
  WaitRecord waits_;                            // of the caller's thread
  const std::unique_ptr<LossExchange> losses_;  // nullptr if there is one node
  const std::unique_ptr<CommunicatorIds> ids_;  // nullptr unless the workers exchange gradients with other nodes
  RoundGroup round_group_;
  const std::vector<std::unique_ptr<PipelineState>> pipelines_;
  CoordinatorState state_;
  CommitThread commit_;
};

}  // namespace rp
