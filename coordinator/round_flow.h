// coordinator/round_flow.h
// Tracks the rounds of all pipelines from their acceptance to the last use of their blocks:
// performs the changes that accepting a round, committing a slot and dropping a graph make.
//
// Holds state only; it has no threads and never waits. When a method returns, everything that can
// be done is done: slots that may be dispatched are dispatched, blocks without readers are freed,
// the fault board is up to date, and the Updates know which tasks are open. A block is freed when
// its last reader is removed (by the commit of a slot, the dropping of a graph, or release()), but
// not before the slot that writes it is committed. Only commits, in slot order, pass gradients to
// the Updates (docs/design/protocol.md).
//
// When a worker is lost, the epoch ends; the next one begins with the workers that are ready, and everything that is
// not committed is done again (docs/design/replay.md).
//
// Owned by the CoordinatorState and guarded by its mutex, as are the rounds that are passed to it.
// Store, InputBlocks and Updates must outlive it. Writes the command rings, the free rings, the
// origins and sources of a round's table, and the words of the epoch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/exchange/loss_exchange.h"
#include "coordinator/pipeline_state.h"
#include "coordinator/rounds/activation_budget.h"
#include "coordinator/rounds/dispatcher.h"
#include "coordinator/rounds/epochs.h"
#include "coordinator/rounds/free_sender.h"
#include "coordinator/rounds/input_blocks.h"
#include "coordinator/rounds/pipeline_buffers.h"
#include "coordinator/rounds/round.h"
#include "coordinator/rounds/round_blocks.h"
#include "coordinator/run_plans/stage_plans.h"
#include "coordinator/run_report.h"
#include "coordinator/updates/updates.h"
#include "hoststore/store.h"

namespace rp {

// Describes a task that is committed, for CoordinatorOptions::on_commit.
struct CommittedTask {
  const Round& round;
  const Slot& slot;
  const Completion& completion;
};
using OnCommit = std::function<void(const CommittedTask&)>;

class RoundFlow {
 public:
  // `pipelines`: provide the settings and the Updates. `on_commit`: called for each task in slot
  // order; may be empty. `other_nodes`: get the losses; nullptr if there are none. Throws rp::Error
  // (kUsage) for a plan that does not fit its model.
  RoundFlow(Store& store, InputBlocks& inputs, const std::vector<std::unique_ptr<PipelineState>>& pipelines,
            std::optional<FaultBoardEntry> board, OnCommit on_commit, LossExchange* other_nodes);

  // Sets the plan of a new round, and with it the round's slots: `plan`, or the pipeline's own plan
  // if it is nullptr.
  void set_plan(Round& round, const Plan* plan) const;
  // Appends the slots of the round, except the backward slots of a graph. REQUIRES: the round's
  // inputs are placed.
  void accept(const std::shared_ptr<Round>& round, const RoundInputs& inputs);
  // Appends the backward slots of a graph. REQUIRES: the graph is open.
  void accept_backward(const std::shared_ptr<Round>& round, std::uint64_t attempt, std::uint64_t place_in_step);
  // Removes the backward slots of a graph. Does nothing if the graph is not open.
  void drop_graph(const std::shared_ptr<Round>& round);
  // Removes one reader of the block.
  void release(const BlockOfRound& block) { blocks_.release(block); }

  // Commits the next slot in order. If the task failed, changes nothing and returns the error for
  // the user; otherwise returns nullptr. Throws the violations that --check-consistency finds.
  [[nodiscard]] std::exception_ptr commit(const Completion& completion);

  // Notes that a worker has died. REQUIRES: nothing of it writes to the store any more.
  void lose_worker(int worker);
  // Computes neither this slot nor a later one from now on, because its task ends its workers. Called before the death
  // of the last of them is noted.
  void set_aside(SlotNumber slot) { dispatcher_.hold_from(slot); }
  // Returns the command of the task that was set aside, once everything before it is committed.
  [[nodiscard]] std::optional<Command> set_aside_task() const;
  // Ends the epoch if a worker is ready that does not take part. REQUIRES: !is_changing_epoch().
  void admit_ready_workers();
  // While the epoch changes, tasks are accepted but not dispatched, and nothing is committed.
  [[nodiscard]] bool is_changing_epoch() const { return epochs_.is_changing(); }
  [[nodiscard]] Epoch epoch() const { return epochs_.epoch(); }
  // Returns a worker that has not stopped for the wanted epoch yet, or nothing.
  [[nodiscard]] std::optional<int> missing_worker() const { return epochs_.missing(); }
  // Returns the workers that are ready for the wanted epoch.
  [[nodiscard]] std::vector<int> ready_workers() const { return epochs_.ready(); }
  // Begins the wanted epoch with these workers: dispatches all tasks again that are not committed. REQUIRES:
  // is_changing_epoch(); no worker is missing; `workers`, not empty, are ready.
  void begin_epoch(const std::vector<int>& workers);

  // Sends the workers the freed blocks that did not fit into their rings so far. Returns false if
  // some still do not fit.
  bool flush_frees() { return frees_.flush(); }

  // Returns copies of blocks that are kept, by layer.
  [[nodiscard]] std::map<int, std::vector<std::byte>> contents_of(const std::map<int, BlockOfRound>& blocks) const;

  [[nodiscard]] const Dispatcher& slots() const { return dispatcher_; }
  [[nodiscard]] const StagePlans& plans() const { return plans_; }
  // By worker, as reported with the worker's last completion.
  [[nodiscard]] const std::vector<DeviceMemoryPeaks>& device_memory() const { return device_memory_; }
  [[nodiscard]] PipelineBuffers& buffers(int pipeline) { return at(pipeline).buffers; }
  // Returns the budget that follows from the rounds so far.
  [[nodiscard]] const ActivationBudget& activation_budget(int pipeline) { return at(pipeline).activation_budget; }

 private:
  struct Pipeline {
    Updates& updates;
    bool rounds_overlap;  // for rounds with gradients; see RoundMemory
    ActivationBudget activation_budget;
    PipelineBuffers buffers;
  };

  [[nodiscard]] Pipeline& at(int pipeline) { return pipelines_[pipeline]; }
  void launch(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot);
  template <typename Do>
  void for_trained_uses(const Round& round, const LayerRange& layers, Do&& action);
  void report_results(const std::shared_ptr<Round>& round, const Slot& slot);
  void commit_losses(Round& round);
  void commit_gradients(const Round& round, const Slot& slot);
  // REQUIRES: the round's last slot is committed, and no backward pass can follow.
  void end(Round& round);
  void learn_memory(PlanKind kind, const Round& round);
  void end_epoch();

  Store& store_;
  InputBlocks& inputs_;
  const OnCommit on_commit_;
  LossExchange* const other_nodes_;
  StagePlans plans_;
  Epochs epochs_;
  std::vector<std::uint64_t> lists_;  // of live blocks, for the workers of the present epoch
  Dispatcher dispatcher_;
  FreeSender frees_;
  RoundBlocks blocks_;
  RunReport report_;
  std::vector<DeviceMemoryPeaks> device_memory_;
  std::vector<Pipeline> pipelines_;
};

}  // namespace rp
