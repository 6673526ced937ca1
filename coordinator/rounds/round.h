// coordinator/rounds/round.h
// Describes a round, from its acceptance until no process reads its blocks any more, and the slots
// that its plan makes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "coordinator/rounds/lifecycles.h"
#include "hoststore/control.h"
#include "hoststore/task_rows.h"
#include "scheduler/plan.h"

namespace rp {

// One stage of one round at its place in the order of dispatch.
struct Slot {
  Lifecycle<kTaskLifecycle> task{};
  SlotNumber number{};  // set when the task is accepted
  Phase phase = Phase::kForward;
  LayerRange layers;
  int worker = -1;            // set at the dispatch
  EventNumber first_event{};  // set at the dispatch
};

// A caller's request for a round, except its inputs.
struct RoundTraits {
  int pipeline = 0;
  RoundKind kind = RoundKind::kForwardBackward;
  RoundMode mode = RoundMode::kTrain;
  bool keeps_graph = false;     // for a forward pass: a backward pass may follow
  bool keeps_outputs = false;   // the caller reads the outputs
  bool evaluates_loss = false;  // for a forward pass: it ends with the loss
  bool input_gradient = false;  // the caller reads the gradient of the model's inputs
  bool grain_layer = false;
  bool random_numbers = true;
  bool scales_loss = false;
  int loss = 0;
  int num_microbatches = 1;

  // Returns true if the outputs of the last layer are kept for the caller.
  [[nodiscard]] bool gives_outputs() const { return keeps_outputs || (kind == RoundKind::kForward && !evaluates_loss); }
  [[nodiscard]] bool gives_loss() const { return kind == RoundKind::kForwardBackward || evaluates_loss; }
  // Returns true if tasks of the round compute gradients, or may do so later.
  [[nodiscard]] bool has_backward() const { return kind == RoundKind::kForwardBackward || keeps_graph; }
  // `goes_back`: true if a backward pass may follow, or has followed.
  [[nodiscard]] PlanKind plan_kind(bool goes_back) const {
    if (kind == RoundKind::kForwardBackward) return PlanKind::kFused;
    return goes_back ? PlanKind::kTrain : PlanKind::kInfer;
  }
};

struct Round;

// A row of blocks of a round: one block in every microbatch.
struct BlockOfRound {
  std::shared_ptr<Round> round;
  BlockRow row;
};

// Guarded by the Coordinator's mutex. The fields that PipelineState::next_round() and the
// Coordinator set before the first slot is appended do not change afterwards, except `attempt`
// and `place_in_step`, which accepting a backward pass sets.
struct Round {
  static constexpr std::uint64_t kNoNumber = ~std::uint64_t{0};  // of the caller's initial buffers

  RoundTraits traits;
  // Counted since the start of training, and for evaluations from kFirstEvaluation: the key of random
  // numbers.
  std::uint64_t number = 0;
  std::uint64_t step = 0;           // counted from 1
  Version version{};                // of the weights that the round computes with
  Version next_version{};           // of the weights that the round's step makes
  std::uint64_t attempt = 0;        // of rounds with gradients
  std::uint64_t call = 0;           // of the calls for rounds, of all pipelines (RoundGroup::count_round())
  std::uint64_t place_in_step = 0;  // of rounds with gradients: counted from 0
  Plan plan;
  CatalogueLayer first_layer{};
  int num_layers = 0;
  int first_trained_layer = 0;  // no gradient is computed below this layer
  int num_input_imports = 0;
  int num_argument_imports = 0;
  std::uint64_t table = 0;
  std::uint64_t table_bytes = 0;

  std::vector<Slot> slots;  // with the backward slots of an open graph, which get their numbers when they are requested
  std::size_t num_committed = 0;    // the number of slots that are committed
  std::map<BlockRow, int> readers;  // number of readers of this round's blocks; a block without readers is freed
  std::set<BlockRow> unwritten;     // blocks whose slots are not committed; these are not freed
  // The blocks of other rounds that this round's slots read, by the row of this round that they
  // replace.
  std::map<BlockRow, BlockOfRound> origins;
  // By weight group, from the round's first committed task that used it; --check-consistency only.
  std::map<GroupId, WeightsSeen> weights_seen;
  std::vector<double> losses;  // sums over the microbatches

  [[nodiscard]] CatalogueLayer catalogue_layer(int layer) const { return first_layer + layer; }
  // Returns true if a backward pass may still be accepted.
  [[nodiscard]] bool graph_is_open() const { return is(RoundState::kForwardOfGraph) || is(RoundState::kGraphOpen); }
  // Returns true if outputs and losses are final.
  [[nodiscard]] bool forward_is_done() const {
    return is(RoundState::kGraphOpen) || is(RoundState::kBackward) || is_done();
  }
  // Returns true if all slots are committed, and no more will be added.
  [[nodiscard]] bool is_done() const { return is(RoundState::kDone); }
  [[nodiscard]] bool is(RoundState state) const { return lifecycle_.is(state); }
  void move_to(RoundState state) { lifecycle_.move_to(state, static_cast<std::int64_t>(number), traits.pipeline); }
  // Moves a task of this round.
  void move_to(Slot& slot, TaskState state) const {
    slot.task.move_to(state, static_cast<std::int64_t>(slot.number.value()), traits.pipeline);
  }

 private:
  Lifecycle<kRoundLifecycle> lifecycle_;
};

// Returns the slots of a round, without numbers, in the order of dispatch, which is that of
// stages_of().
[[nodiscard]] std::vector<Slot> slots_of(const Plan& plan, int num_layers, int first_trained_layer);

// Returns the command of a slot, without the fields that are known only at its dispatch.
[[nodiscard]] Command command_of(const Round& round, const Slot& slot);

}  // namespace rp
