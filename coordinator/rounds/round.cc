#include "coordinator/rounds/round.h"

#include <algorithm>

namespace rp {

namespace {

// Returns true if a forward stage must write the activation at a boundary inside or at the end of
// the stage.
bool is_saved(const Round& round, const LayerRange& stage, int boundary) {
  const RoundTraits& traits = round.traits;
  if (boundary == round.num_layers) return traits.gives_outputs();
  if (boundary == stage.end) return true;  // the next stage's input
  if (!traits.has_backward()) return false;
  const RecomputeGrain grain = traits.grain_layer ? RecomputeGrain::kLayer : RecomputeGrain::kStage;
  return std::any_of(round.plan.backward.begin(), round.plan.backward.end(), [&](const LayerRange& range) {
    const LayerRange part = trained_part(range, round.first_trained_layer);
    return !part.is_empty() && recompute_inputs(part, grain).contains(boundary);
  });
}

}  // namespace

std::vector<Slot> slots_of(const Plan& plan, int num_layers, int first_trained_layer) {
  std::vector<Slot> slots;
  for (const PlanStage& stage : stages_of(plan, num_layers, first_trained_layer)) {
    slots.push_back({.task = {}, .phase = stage.phase, .layers = stage.layers});
  }
  return slots;
}

Command command_of(const Round& round, const Slot& slot) {
  const RoundTraits& traits = round.traits;
  Command command;
  command.pipeline = static_cast<std::uint32_t>(traits.pipeline);
  command.phase = slot.phase;
  command.round_kind = traits.kind;
  command.round_mode = traits.mode;
  command.loss = traits.loss;
  command.round = round.number;
  command.step = round.step;
  command.version = round.version;
  command.released_before = round.attempt;  // released once the gradients of the previous attempt are read
  command.table = round.table;
  command.table_bytes = round.table_bytes;
  command.layer_base = round.first_layer;
  command.first_layer = slot.layers.first;
  command.end_layer = slot.layers.end;
  command.first_trained_layer = round.first_trained_layer;
  command.num_microbatches = traits.num_microbatches;
  command.num_input_imports = round.num_input_imports;
  command.num_argument_imports = round.num_argument_imports;
  if (traits.input_gradient) command.flags |= Command::kInputGradient;
  if (traits.grain_layer) command.flags |= Command::kGrainLayer;
  if (traits.has_backward()) command.flags |= Command::kSavesForRecompute;
  if (!traits.random_numbers) command.flags |= Command::kNoRandomNumbers;
  if (traits.scales_loss) command.flags |= Command::kScalesLoss;
  if (traits.evaluates_loss && slot.layers.end == round.num_layers) command.flags |= Command::kGivesLoss;
  if (slot.phase != Phase::kBackward) {
    for (int boundary = slot.layers.first + 1; boundary <= slot.layers.end; ++boundary) {
      if (slot.phase == Phase::kFused && boundary < round.num_layers) continue;
      if (is_saved(round, slot.layers, boundary)) command.save(boundary);
    }
  }
  return command;
}

}  // namespace rp
