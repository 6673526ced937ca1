#include "worker/stage_memory.h"

#include <map>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// Allocates memory for a stage's weight groups. If memory is lacking, the error names the stage.
std::byte* resize(ScratchMemory& memory, const Command& command, Device& device, std::uint64_t bytes, MemoryUse use) {
  try {
    return memory.resize(device, bytes, use);
  } catch (const Error& error) {
    throw Error(error.code(), cat("layers ", command.first_layer, "-", command.end_layer - 1, " (a ",
                                  phase_name(command.phase), " stage): ", error.what()));
  }
}

const WeightGroupRecord& group_of(const Catalogue& catalogue, UseId use) {
  return catalogue.weight_groups()[catalogue.uses()[use].group];
}

}  // namespace

void place_weights(RunningTask& task, const Catalogue& catalogue, Device& device) {
  const Command& command = task.command;
  std::map<GroupId, std::uint64_t> offset_of_group;
  std::uint64_t weight_bytes = 0;
  task.uses.clear();
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    for (const UseId use : catalogue.uses_of(command.catalogue_layer(layer))) {
      const WeightGroupRecord& group = group_of(catalogue, use);
      if (offset_of_group.emplace(catalogue.uses()[use].group, weight_bytes).second)
        weight_bytes += group.device_bytes();
      task.uses.push_back({.use = use});
    }
  }
  std::byte* weights = resize(task.stage_buffer->weights, command, device, weight_bytes, MemoryUse::kWeights);
  for (UseMemory& memory : task.uses) memory.weights = weights + offset_of_group[catalogue.uses()[memory.use].group];
}

GradientBytes gradient_bytes(const Command& command, const Catalogue& catalogue) {
  GradientBytes bytes;
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    for (const UseId use : catalogue.uses_of(command.catalogue_layer(layer))) {
      const WeightGroupRecord& group = group_of(catalogue, use);
      if (group.is_trained == 0) continue;
      bytes.rounded += group.device_bytes();
      bytes.accumulators += group.accumulator_bytes();
    }
  }
  return bytes;
}

bool place_gradients(RunningTask& task, ScratchMemory& accumulators, const Catalogue& catalogue, Device& device) {
  const GradientBytes bytes = gradient_bytes(task.command, catalogue);
  if (bytes.rounded == 0) return true;
  const bool are_new = accumulators.bytes() < bytes.accumulators;
  std::byte* gradient =
      resize(task.gradient_buffer->gradients, task.command, device, bytes.rounded, MemoryUse::kGradients);
  std::byte* accumulator = resize(accumulators, task.command, device, bytes.accumulators, MemoryUse::kAccumulators);
  for (UseMemory& memory : task.uses) {
    const WeightGroupRecord& group = group_of(catalogue, memory.use);
    if (group.is_trained == 0) continue;
    memory.gradient = gradient;
    memory.accumulator = reinterpret_cast<float*>(accumulator);
    gradient += group.device_bytes();
    accumulator += group.accumulator_bytes();
  }
  return are_new && device.allocates_zeros();
}

}  // namespace rp
