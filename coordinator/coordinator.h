// coordinator/coordinator.h
// The side of a run that decides: which worker gets which stage, what is final, when weights change. One order of slots
// for the rounds of all pipelines.
//
// Rounds are accepted in the caller's thread; a thread of its own follows the completions and moves the commit point
// over the slots, in slot order (docs/design/protocol.md). Only then are inputs freed and gradients given to the Updates.
// Dispatch happens in both threads, under the mutex, and runs ahead of the workers.
//
// Owned by the Runtime. The Store must outlive it. accept_*(), synchronize() come from one thread.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "coordinator/activation_budget.h"
#include "coordinator/completions.h"
#include "coordinator/coordinator_trace.h"
#include "coordinator/dispatcher.h"
#include "coordinator/input_blocks.h"
#include "coordinator/pipeline_state.h"
#include "coordinator/round.h"
#include "coordinator/round_blocks.h"
#include "coordinator/run_report.h"
#include "coordinator/stage_plans.h"
#include "coordinator/updates.h"
#include "hoststore/store.h"

namespace rp {

// What is told of a task that is committed.
struct CommittedTask {
  const Round& round;
  const Slot& slot;
  const Completion& completion;
};

struct CoordinatorOptions {
  int optimizer_threads = 1;
  std::vector<PipelineSettings> pipelines;
  std::optional<FaultBoardEntry> board{};  // says how far it is and what its threads wait for
  TraceJournal* trace = nullptr;           // what its threads did goes there; outlives it
  std::function<void()> on_hang{};         // the commit thread's, before it fails because nothing goes on
  // The commit thread's, of each task in slot order, with the coordinator's mutex held: short, and without a call back.
  std::function<void(const CommittedTask&)> on_commit{};
  std::optional<HostMemoryModel> modelled_memory{};  // weights are updated in this memory's time, and not touched
};

// What a round is given, by microbatch; and parts of it that other rounds made: outputs, in all microbatches.
struct RoundInputs {
  std::vector<BlockContents> inputs;
  std::vector<BlockContents> arguments{};  // with a loss only
  std::vector<BlockOfRound> input_imports{};
  std::vector<BlockOfRound> argument_imports{};
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
  // REQUIRES: nothing in flight.
  [[nodiscard]] UpdateHistory update_history(int pipeline) { return at(pipeline).updates->history(); }

  // Copies the inputs and dispatches the round. Waits while two rounds of the pipeline are in flight. Throws what fail()
  // was told. Keeps for the caller, until drop(): the outputs and the inputs' gradient as the traits say.
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
  // What the rounds so far tell of it: without bytes before the first one has ended.
  [[nodiscard]] ActivationBudget activation_budget(int pipeline);

 private:
  [[nodiscard]] PipelineState& at(int pipeline) { return *pipelines_[static_cast<std::size_t>(pipeline)]; }
  [[nodiscard]] const PipelineState& at(int pipeline) const { return *pipelines_[static_cast<std::size_t>(pipeline)]; }
  [[nodiscard]] WaitRecord traced_waits(CoordinatorThread thread);
  void check_failure() RP_REQUIRES(mutex_);
  // Sleeps until something changed; the record says what for, until the caller has it and clears the record.
  void sleep(WaitRecord& record, const Wait& wait) RP_REQUIRES(mutex_);
  // Runs a wait for the updates; what it throws is known to the caller then.
  template <typename Do>
  void wait_for_updates(const Wait& what, Do wait);
  void wait_for_flight(PipelineState& pipeline);
  [[nodiscard]] std::shared_ptr<Round> new_round(const RoundTraits& traits, const RoundInputs& inputs, const Plan* plan);
  void launch(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot) RP_REQUIRES(mutex_);
  [[nodiscard]] RoundShape shape_of(const Round& round) const;
  [[nodiscard]] RoundTable table_of(const Round& round);

  void follow_completions();
  void commit(const Completion& completion) RP_REQUIRES(mutex_);
  void commit_losses(Round& round) RP_REQUIRES(mutex_);
  template <typename Do>
  void for_trained_uses(const Round& round, const LayerRange& layers, Do&& action);
  void commit_gradients(const Round& round, const Slot& slot) RP_REQUIRES(mutex_);
  void end_round(Round& round) RP_REQUIRES(mutex_);
  void learn_memory(PipelineState& pipeline, PlanKind kind, const Round& round) RP_REQUIRES(mutex_);

  Store& store_;
  const CoordinatorOptions options_;
  Completions completions_;  // the commit thread's
  InputBlocks inputs_;
  std::vector<std::unique_ptr<PipelineState>> pipelines_;

  CoordinatorTrace trace_;
  WaitRecord user_waits_;    // the caller's thread's
  WaitRecord commit_waits_;  // the commit thread's

  Mutex mutex_;
  CondVar changed_;
  StagePlans plans_ RP_GUARDED_BY(mutex_);
  Dispatcher dispatcher_ RP_GUARDED_BY(mutex_);
  RoundBlocks blocks_ RP_GUARDED_BY(mutex_);
  RunReport report_ RP_GUARDED_BY(mutex_);
  std::exception_ptr error_ RP_GUARDED_BY(mutex_);
  bool error_is_known_ RP_GUARDED_BY(mutex_) = false;  // a call has thrown it
  std::thread thread_;
};

}  // namespace rp
