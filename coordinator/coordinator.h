// coordinator/coordinator.h
// The side of a run that decides: which worker gets which stage, what is final, when weights change.
//
// Rounds are accepted in the caller's thread; a CommitThread follows the completions and moves the commit point over
// the slots, in slot order (docs/design/protocol.md). Both change the RoundFlow, which they share in the
// CoordinatorState. This class is the caller's side: what it asks for, and its waits.
//
// Owned by the Runtime. The Store must outlive it. accept_*(), synchronize() come from one thread.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/commit_thread.h"
#include "coordinator/coordinator_state.h"
#include "coordinator/coordinator_trace.h"
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
  std::optional<FaultBoardEntry> board{};  // says how far it is and what its threads wait for
  TraceJournal* trace = nullptr;           // what its threads did goes there; outlives it
  std::function<void()> on_hang{};         // the commit thread's, before it fails because nothing goes on
  // The commit thread's, of each task in slot order, with the coordinator's mutex held: short, and without a call back.
  TellCommit on_commit{};
  std::optional<HostMemoryModel> emulated_memory{};  // weights are updated in this memory's time, and not touched
};

class Coordinator {
 public:
  Coordinator(Store& store, CoordinatorOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // The buffers of a pipeline's layers before its first round, by layer, for those that have some.
  void set_buffers(int pipeline, const std::map<int, BlockContents>& buffers);
  // The newest ones, by layer, or those after the last round that is part of a step. REQUIRES: nothing in flight.
  enum class BuffersOf { kLastRound, kLastStep };
  [[nodiscard]] std::map<int, BlockOfRound> buffers(int pipeline, BuffersOf which);

  // Other weights will be written to the store, as a new version that has `steps` steps and `rounds` rounds behind it.
  // REQUIRES: nothing in flight, no round since the last step.
  void restart_at(int pipeline, std::uint64_t steps, std::uint64_t rounds, const UpdateHistory& history);
  // The state after the last accepted step stays in `snapshot`, whatever is accepted next. One at a time.
  void keep_state(int pipeline, std::shared_ptr<StateSnapshot> snapshot) {
    at(pipeline).updates->keep(version(pipeline), std::move(snapshot));
  }
  // Another thread's: waits for that step, and returns the history as of then. Throws what fail() was told before that.
  [[nodiscard]] UpdateHistory wait_kept_state(int pipeline) { return at(pipeline).updates->wait_kept(); }

  // Copies the inputs and dispatches the round. Waits while two rounds of the pipeline are in flight. Throws what
  // fail() was told. Keeps for the caller, until drop(): the outputs and the inputs' gradient as the traits say.
  std::shared_ptr<Round> accept_round(const RoundTraits& traits, const RoundInputs& inputs, const Plan* plan = nullptr);

  // Dispatches the backward of a round that keeps its graph. `gradients`: of its outputs, by microbatch.
  // REQUIRES: there was none; the round has backward stages; the pipeline's step is still the round's.
  void accept_backward(const std::shared_ptr<Round>& round, const std::vector<BlockContents>& gradients);
  // There will be no backward. Nothing if there was one.
  void drop_graph(const std::shared_ptr<Round>& round);

  // The caller does not read a block any more that was kept for it.
  void drop(const BlockOfRound& block);

  // Accepts the step that ends the rounds since the last one. REQUIRES: rounds_since_step() > 0.
  std::shared_ptr<StepOutcome> accept_step(int pipeline, StepRequest request);

  // Waits for the losses and outputs of a round, for its last slot.
  void wait_forward(const Round& round);
  void wait_all(const Round& round);
  // The block of a microbatch. REQUIRES: waited for, and kept.
  [[nodiscard]] const std::byte* block(const Round& round, BlockRow row, int microbatch, std::uint64_t& bytes);

  // Waits until norm_known; what it returns does not change any more.
  [[nodiscard]] const StepOutcome& wait_norm(int pipeline, const StepOutcome& outcome);

  // Waits until the last accepted step is applied.
  void wait_step(int pipeline);
  // Waits until everything accepted is committed and applied.
  void synchronize();
  // The next forward without gradients computes with the newest weights, also in an asynchronous run.
  void use_newest_weights(int pipeline);

  // synchronize() at the end of a run: returns the run's failure if no call has thrown it before.
  [[nodiscard]] std::exception_ptr finish();

  // Any thread's: the caller's program makes progress that no slot tells of.
  void publish_heartbeat() {
    if (options_.board) FaultBoardEntry(*options_.board).publish_heartbeat();
  }

  // Ends the workers: drops what is in flight. Nothing is accepted after that. The destructor's, if it was not called.
  void end();

  // The run cannot go on: every wait, present or later, throws `error`. The first call counts.
  void fail(std::exception_ptr error);

  [[nodiscard]] std::uint64_t num_steps(int pipeline) const { return at(pipeline).num_steps; }
  // Of training, up to the last step.
  [[nodiscard]] std::uint64_t num_rounds_of_steps(int pipeline) const { return at(pipeline).num_rounds_of_steps; }
  // False if all parameters are frozen.
  [[nodiscard]] bool is_trained(int pipeline) const { return at(pipeline).is_trained; }
  // Of the weights after the last accepted step; they lie in working copy version() mod copies.
  [[nodiscard]] std::uint64_t version(int pipeline) const { return at(pipeline).version(); }
  // Rounds with gradients.
  [[nodiscard]] int rounds_since_step(int pipeline) const { return at(pipeline).rounds_since_step; }
  [[nodiscard]] Plan plan(int pipeline, PlanKind kind);
  // For one microbatch, smoothed over the rounds.
  [[nodiscard]] std::vector<LayerTiming> layer_times(int pipeline);
  // By worker: what it has had of its device so far. Zeros where that memory is the host's.
  [[nodiscard]] std::vector<DeviceMemoryPeaks> device_memory();
  // What the rounds so far tell of it: without bytes before the first one has ended.
  [[nodiscard]] ActivationBudget activation_budget(int pipeline);

 private:
  [[nodiscard]] PipelineState& at(int pipeline) { return *pipelines_[static_cast<std::size_t>(pipeline)]; }
  [[nodiscard]] const PipelineState& at(int pipeline) const { return *pipelines_[static_cast<std::size_t>(pipeline)]; }
  [[nodiscard]] std::vector<std::unique_ptr<PipelineState>> make_pipelines();
  [[nodiscard]] WaitRecord traced_waits(CoordinatorThread thread);
  // Runs a wait for the updates; what it throws is known to the caller then.
  template <typename Do>
  void wait_for_updates(const Wait& what, Do wait);
  void wait_for_flight(int pipeline);

  Store& store_;
  const CoordinatorOptions options_;
  InputBlocks inputs_;
  CoordinatorTrace trace_;
  WaitRecord waits_;  // the caller's thread's
  const std::vector<std::unique_ptr<PipelineState>> pipelines_;
  CoordinatorState state_;
  CommitThread commit_;
};

}  // namespace rp
