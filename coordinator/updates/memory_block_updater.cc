#include "coordinator/updates/memory_block_updater.h"

#include <algorithm>

namespace rp {

MemoryBlockUpdater::MemoryBlockUpdater(Store& store, std::span<const std::uint32_t> blocks, int num_threads, bool adds_rounds)
    : store_(store), adds_rounds_(adds_rounds), team_(num_threads) {
  std::size_t most = 0;
  for (const std::uint32_t block : blocks) most = std::max(most, num_partial_sums(store.catalogue().blocks()[block].num_elements));
  partial_sums_.resize(most);
}

void MemoryBlockUpdater::add_to_sum(std::uint32_t index, bool begins) {
  const UseRecord& use = store_.catalogue().uses()[index];
  const BlockRecord& block = store_.catalogue().blocks()[use.block];
  float* sum = store_.state(use.sum_offset);
  if (begins) std::fill_n(sum, block.num_elements, 0.0F);
  const void* gradient = store_.gradients(use.gradient_offset);
  add_gradients(sum, {.uses = &gradient, .num_uses = 1, .dtype = block.dtype, .num_elements = block.num_elements}, team_);
}

double MemoryBlockUpdater::square_sum(std::uint32_t block) {
  std::vector<const void*> pointers;
  return sum_of_squares(gradients_of(block, pointers), partial_sums_, team_);
}

void MemoryBlockUpdater::write_gradient(std::uint32_t block, const UpdateStep& scaling, float* gradient) {
  std::vector<const void*> pointers;
  rp::write_gradient(gradient, gradients_of(block, pointers), scaling, team_);
}

void MemoryBlockUpdater::update(std::uint32_t block, std::uint64_t version, std::span<const UpdateSpan> rules) {
  const BlockState state = state_of(block, version);
  if (rules.empty()) {
    skip_block(state, team_);
    return;
  }
  std::vector<const void*> pointers;
  update_block(state, gradients_of(block, pointers), rules, team_);
}

BlockGradients MemoryBlockUpdater::gradients_of(std::uint32_t index, std::vector<const void*>& pointers) {
  const BlockRecord& block = store_.catalogue().blocks()[index];
  for (const UseRecord& use : store_.catalogue().uses_of_block(index)) {
    pointers.push_back(adds_rounds_ ? static_cast<const void*>(store_.state(use.sum_offset)) : store_.gradients(use.gradient_offset));
  }
  return {.uses = pointers.data(),
          .num_uses = pointers.size(),
          .dtype = adds_rounds_ ? DType::kFloat32 : block.dtype,
          .num_elements = block.num_elements};
}

BlockState MemoryBlockUpdater::state_of(std::uint32_t index, std::uint64_t version) {
  const BlockRecord& block = store_.catalogue().blocks()[index];
  const auto moment = [&](std::uint64_t offset) { return offset == kNoOffset ? nullptr : store_.state(offset); };
  BlockState state{.m = moment(block.moment1_offset), .v = moment(block.moment2_offset), .num_elements = block.num_elements};
  std::byte* copy = store_.working_copy(index, version).data();
  if (block.working_is_master()) {
    state.old_master = reinterpret_cast<const float*>(store_.working_copy(index, version - 1).data());
    state.master = reinterpret_cast<float*>(copy);
  } else {
    state.old_master = state.master = store_.state(block.master_offset);
    state.working = copy;
    state.working_dtype = block.dtype;
  }
  return state;
}

}  // namespace rp
