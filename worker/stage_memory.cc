#include "worker/stage_memory.h"

#include <algorithm>
#include <map>

#include "common/check.h"

namespace rp {

namespace {

// Bytes that a block takes: a place of its own even where it has no elements.
std::uint64_t place_bytes(std::uint64_t bytes) { return align_up(std::max<std::uint64_t>(bytes, 1), 4096); }

const BlockRecord& block_of(const Catalogue& catalogue, std::uint32_t use) { return catalogue.blocks()[catalogue.uses()[use].block]; }

}  // namespace

void place_weights(RunningTask& task, const Catalogue& catalogue, Device& device) {
  const Command& command = task.command;
  const auto has_gradient = [&](std::uint32_t use) {
    return command.phase != Phase::kForward && block_of(catalogue, use).is_trained != 0;
  };
  std::map<std::uint32_t, std::uint64_t> offset_of_block;
  std::uint64_t weight_bytes = 0;
  std::uint64_t accumulator_bytes = 0;
  task.uses.clear();
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    for (const std::uint32_t use : catalogue.uses_of(static_cast<int>(command.layer_base) + layer)) {
      const BlockRecord& block = block_of(catalogue, use);
      if (offset_of_block.emplace(catalogue.uses()[use].block, weight_bytes).second) weight_bytes += place_bytes(block.bytes());
      if (has_gradient(use)) accumulator_bytes += place_bytes(block.num_elements * sizeof(float));
      task.uses.push_back({.use = use});
    }
  }
  std::byte* weights = task.stage_buffer->weights.resize(device, weight_bytes);
  std::byte* accumulator = accumulator_bytes > 0 ? task.stage_buffer->accumulators.resize(device, accumulator_bytes) : nullptr;
  for (UseMemory& memory : task.uses) {
    memory.weights = weights + offset_of_block[catalogue.uses()[memory.use].block];
    if (!has_gradient(memory.use)) continue;
    memory.accumulator = reinterpret_cast<float*>(accumulator);
    accumulator += place_bytes(block_of(catalogue, memory.use).num_elements * sizeof(float));
  }
}

void place_gradients(RunningTask& task, const Catalogue& catalogue, Device& device) {
  std::uint64_t bytes = 0;
  for (const UseMemory& memory : task.uses) {
    if (memory.accumulator != nullptr) bytes += place_bytes(block_of(catalogue, memory.use).bytes());
  }
  std::byte* gradient = task.gradient_buffer->gradients.resize(device, bytes);
  for (UseMemory& memory : task.uses) {
    if (memory.accumulator == nullptr) continue;
    memory.gradient = gradient;
    gradient += place_bytes(block_of(catalogue, memory.use).bytes());
  }
}

}  // namespace rp
