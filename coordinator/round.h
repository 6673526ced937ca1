// coordinator/round.h
// A round in flight, and the slots that its plan makes of it.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "hoststore/control.h"
#include "scheduler/plan.h"

namespace rp {

// What the caller of a round waits for. Guarded by the Coordinator's mutex.
struct RoundOutcome {
  bool done = false;
  double loss = 0;
};

// One stage of one round at its place in the order of dispatch.
struct Slot {
  std::uint64_t number = 0;  // without epoch
  Phase phase = Phase::kForward;
  LayerRange layers;
  int worker = -1;                // once dispatched
  std::uint64_t first_event = 0;  // once dispatched
};

// One attempt of one round.
struct Round {
  std::uint64_t attempt = 0;
  std::uint64_t number = 0;  // over the whole run
  std::uint64_t step = 0;    // counted from 1
  std::uint64_t version = 0;      // of the weights that it computes with
  std::uint64_t next_version = 0; // of the weights that its step makes
  std::uint64_t taken_before = 0;
  std::int32_t loss = 0;
  int num_microbatches = 0;
  Plan plan;
  std::vector<Slot> slots;
  std::shared_ptr<RoundOutcome> outcome;

  [[nodiscard]] std::uint64_t taken_after() const { return attempt + 1; }
};

// A block that the commit of a slot frees, in every microbatch.
struct FreedBlock {
  BlockKind kind = BlockKind::kActivation;
  int boundary = 0;
};

// The slots of a plan in the order of dispatch, numbered from `first_number`.
[[nodiscard]] std::vector<Slot> slots_of(const Plan& plan, int num_layers, std::uint64_t first_number);

// The boundaries whose activation a forward stage writes: its end, and inside it where backward stages begin.
[[nodiscard]] std::vector<int> saved_boundaries(const Plan& plan, const LayerRange& forward_stage);

// The blocks whose last reader is this slot.
[[nodiscard]] std::vector<FreedBlock> freed_blocks(const Plan& plan, const Slot& slot);

// The index in `slots` of the slot that writes the activation at `boundary` (> 0), or the gradient there.
[[nodiscard]] std::size_t activation_producer(const std::vector<Slot>& slots, int boundary);
[[nodiscard]] std::size_t gradient_producer(const std::vector<Slot>& slots, int boundary);

}  // namespace rp
