// coordinator/rounds/round.h
// A round from its acceptance to the moment when nobody reads its blocks any more, and the slots that its plan makes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "hoststore/control.h"
#include "hoststore/task_rows.h"
#include "scheduler/plan.h"

namespace rp {

// One stage of one round at its place in the order of dispatch.
struct Slot {
  std::uint64_t number = 0;  // without epoch
  Phase phase = Phase::kForward;
  LayerRange layers;
  int worker = -1;                // once dispatched
  std::uint64_t first_event = 0;  // once dispatched
};

// What a caller asks of a round besides its inputs.
struct RoundTraits {
  int pipeline = 0;
  RoundKind kind = RoundKind::kForwardBackward;
  RoundMode mode = RoundMode::kTrain;
  bool keeps_graph = false;     // of a forward: a backward may follow
  bool keeps_outputs = false;   // for the caller
  bool evaluates_loss = false;  // of a forward: it ends with the loss
  bool input_gradient = false;  // likewise: the gradient of the model's inputs
  bool grain_layer = false;
  bool random_numbers = true;
  bool scales_loss = false;
  int loss = 0;
  int num_microbatches = 1;

  // Whether the caller is given the outputs of the last layer.
  [[nodiscard]] bool gives_outputs() const { return keeps_outputs || (kind == RoundKind::kForward && !evaluates_loss); }
  [[nodiscard]] bool gives_loss() const { return kind == RoundKind::kForwardBackward || evaluates_loss; }
  // Whether tasks of the round compute gradients.
  [[nodiscard]] bool has_backward() const { return kind == RoundKind::kForwardBackward || keeps_graph; }
  // `goes_back`: whether its backward may come, or did.
  [[nodiscard]] PlanKind plan_kind(bool goes_back) const {
    if (kind == RoundKind::kForwardBackward) return PlanKind::kFused;
    return goes_back ? PlanKind::kTrain : PlanKind::kInfer;
  }
};

struct Round;

// A block of a round, in every microbatch.
struct BlockOfRound {
  std::shared_ptr<Round> round;
  BlockRow row;
};

// Guarded by the Coordinator's mutex. What PipelineState::next_round() and the Coordinator fill in before its first
// slot is appended does not change afterwards, except `attempt`, which accepting a backward sets, and `graph_is_open`.
struct Round {
  RoundTraits traits;
  std::uint64_t number = 0;        // over the whole run: the key of random numbers
  std::uint64_t step = 0;          // counted from 1
  std::uint64_t version = 0;       // of the weights that it computes with
  std::uint64_t next_version = 0;  // of the weights that its step makes
  std::uint64_t attempt = 0;       // of rounds with gradients
  Plan plan;
  int first_layer = 0;  // the catalogue's number of layer 0
  int num_layers = 0;
  int first_trained_layer = 0;  // no gradient goes below
  int num_input_imports = 0;
  int num_argument_imports = 0;
  std::uint64_t table = 0;
  std::uint64_t table_bytes = 0;

  std::vector<Slot> slots;          // those of a graph's backward once it was asked for
  std::size_t num_committed = 0;    // of slots
  bool graph_is_open = false;       // backward slots may still come
  std::map<BlockRow, int> readers;  // of this round's blocks; a block without any is freed
  std::set<BlockRow> unwritten;     // blocks of slots that are not committed: not freed before
  // Blocks of other rounds that slots of this one read.
  std::map<BlockRow, BlockOfRound> origins;
  std::map<std::uint32_t, WeightsSeen>
      weights_seen;            // by weight group, of its first committed task; --check-consistency only
  std::vector<double> losses;  // sums over the microbatches
  bool forward_done = false;   // outputs and losses are final
  bool all_done = false;       // no slot is left, and none will come
};

// The slots of a round in the order of dispatch, without numbers: forward, fused, backward stages. Backward stages end
// at `first_trained_layer`.
[[nodiscard]] std::vector<Slot> slots_of(const Plan& plan, int num_layers, int first_trained_layer);

// All of a slot's command but what is known at its dispatch.
[[nodiscard]] Command command_of(const Round& round, const Slot& slot);

}  // namespace rp
