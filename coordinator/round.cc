#include "coordinator/round.h"

#include <algorithm>

#include "common/check.h"

namespace rp {

namespace {

bool begins_backward(const Plan& plan, int boundary) {
  return std::any_of(plan.backward.begin(), plan.backward.end(),
                     [boundary](const LayerRange& range) { return range.first == boundary; });
}

}  // namespace

std::vector<Slot> slots_of(const Plan& plan, int num_layers, std::uint64_t first_number) {
  std::vector<Slot> slots;
  const auto add = [&](Phase phase, LayerRange layers) {
    slots.push_back({.number = first_number + slots.size(), .phase = phase, .layers = layers});
  };
  for (const LayerRange& range : plan.forward) add(Phase::kForward, range);
  add(Phase::kFused, {plan.fused_start, num_layers});
  for (const LayerRange& range : plan.backward) add(Phase::kBackward, range);
  return slots;
}

std::vector<int> saved_boundaries(const Plan& plan, const LayerRange& forward_stage) {
  std::vector<int> boundaries;
  for (int boundary = forward_stage.first + 1; boundary < forward_stage.end; ++boundary) {
    if (begins_backward(plan, boundary)) boundaries.push_back(boundary);
  }
  boundaries.push_back(forward_stage.end);
  return boundaries;
}

std::vector<FreedBlock> freed_blocks(const Plan& plan, const Slot& slot) {
  std::vector<FreedBlock> freed;
  switch (slot.phase) {
    case Phase::kForward:
      if (!begins_backward(plan, slot.layers.first)) freed.push_back({BlockKind::kActivation, slot.layers.first});
      break;
    case Phase::kFused:
      freed.push_back({BlockKind::kActivation, slot.layers.first});
      freed.push_back({BlockKind::kArguments, 0});
      break;
    case Phase::kBackward:
      freed.push_back({BlockKind::kActivation, slot.layers.first});
      freed.push_back({BlockKind::kGradient, slot.layers.end});
      break;
  }
  return freed;
}

std::size_t activation_producer(const std::vector<Slot>& slots, int boundary) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot& slot = slots[i];
    if (slot.phase == Phase::kForward && slot.layers.first < boundary && boundary <= slot.layers.end) return i;
  }
  RP_ASSERT(false);
}

std::size_t gradient_producer(const std::vector<Slot>& slots, int boundary) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].phase != Phase::kForward && slots[i].layers.first == boundary) return i;
  }
  RP_ASSERT(false);
}

}  // namespace rp
