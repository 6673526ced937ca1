// coordinator/round_flow.h
// The rounds of all pipelines on their way from acceptance to the last use of their blocks: what accepting a round,
// committing a slot and dropping a graph change.
//
// State only, without threads and waits. Each method leaves everything as far as it can be: slots that may be
// dispatched are, blocks without readers are freed, the fault board is up to date, the Updates know which tasks are
// open. Only what is committed, in slot order, frees blocks and gives gradients to the Updates
// (docs/design/protocol.md).
//
// Owned by the Coordinator and guarded by its mutex, as are the rounds that it is given. Store, InputBlocks and Updates
// must outlive it. Writes the command rings, the free rings, and of a round's table origins and sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/pipeline_state.h"
#include "coordinator/rounds/activation_budget.h"
#include "coordinator/rounds/dispatcher.h"
#include "coordinator/rounds/input_blocks.h"
#include "coordinator/rounds/pipeline_buffers.h"
#include "coordinator/rounds/round.h"
#include "coordinator/rounds/round_blocks.h"
#include "coordinator/run_plans/stage_plans.h"
#include "coordinator/run_report.h"
#include "coordinator/updates/updates.h"
#include "hoststore/store.h"

namespace rp {

// What is told of a task that is committed.
struct CommittedTask {
  const Round& round;
  const Slot& slot;
  const Completion& completion;
};
using TellCommit = std::function<void(const CommittedTask&)>;

class RoundFlow {
 public:
  // `pipelines`: for their settings and their Updates. `on_commit`: of each task in slot order; may be empty. Throws
  // rp::Error (kUsage) for a plan that is not the model's.
  RoundFlow(Store& store, InputBlocks& inputs, const std::vector<std::unique_ptr<PipelineState>>& pipelines,
            std::optional<FaultBoardEntry> board, TellCommit on_commit);

  // Gives a new round its plan, this one or, without, the pipeline's own, and so its slots.
  void set_plan(Round& round, const Plan* plan) const;
  // Appends the round, without the backward of a graph. REQUIRES: its inputs are placed.
  void accept(const std::shared_ptr<Round>& round, const RoundInputs& inputs);
  // Appends the backward of a graph that is open.
  void accept_backward(const std::shared_ptr<Round>& round, std::uint64_t attempt);
  // There will be no backward. Nothing if the graph is not open.
  void drop_graph(const std::shared_ptr<Round>& round);
  // A reader less.
  void release(const BlockOfRound& block) { blocks_.release(block); }

  // The next slot in order. Returns what the user is told if the task failed: then nothing is changed. Throws what
  // --check-consistency finds.
  [[nodiscard]] std::exception_ptr commit(const Completion& completion);

  // Tells the workers of blocks that they had no place for in their rings. False: there still are such.
  bool flush_frees() { return blocks_.flush_frees(); }

  [[nodiscard]] const Dispatcher& slots() const { return dispatcher_; }
  [[nodiscard]] const StagePlans& plans() const { return plans_; }
  // By worker, as they told with their last completion.
  [[nodiscard]] const std::vector<DeviceMemoryPeaks>& device_memory() const { return device_memory_; }
  [[nodiscard]] PipelineBuffers& buffers(int pipeline) { return at(pipeline).buffers; }
  // What the rounds so far tell of it.
  [[nodiscard]] const ActivationBudget& activation_budget(int pipeline) { return at(pipeline).activation_budget; }

 private:
  struct Pipeline {
    Updates& updates;
    bool rounds_overlap;  // of rounds with gradients: see RoundMemory
    ActivationBudget activation_budget;
    PipelineBuffers buffers;
  };

  [[nodiscard]] Pipeline& at(int pipeline) { return pipelines_[static_cast<std::size_t>(pipeline)]; }
  void launch(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot);
  template <typename Do>
  void for_trained_uses(const Round& round, const LayerRange& layers, Do&& action);
  void commit_losses(Round& round);
  void commit_gradients(const Round& round, const Slot& slot);
  void end_if_done(Round& round);
  void learn_memory(PlanKind kind, const Round& round);

  Store& store_;
  const TellCommit on_commit_;
  StagePlans plans_;
  Dispatcher dispatcher_;
  RoundBlocks blocks_;
  RunReport report_;
  std::vector<DeviceMemoryPeaks> device_memory_;
  std::vector<Pipeline> pipelines_;
};

}  // namespace rp
