#include "coordinator/input_blocks.h"

#include <cstring>

namespace rp {

void InputBlocks::place(std::uint64_t attempt, const std::vector<MicrobatchData>& microbatches) {
  std::vector<std::uint64_t> placed;
  const auto place_one = [&](BlockKind kind, std::size_t microbatch, const std::vector<TensorView>& tensors) {
    BlockPlace& place = store_.block_place(attempt, kind, 0, static_cast<int>(microbatch));
    place_block(place, tensors);
    placed.push_back(place.offset);
  };
  try {
    for (std::size_t m = 0; m < microbatches.size(); ++m) {
      place_one(BlockKind::kActivation, m, microbatches[m].inputs);
      place_one(BlockKind::kArguments, m, microbatches[m].arguments);
    }
  } catch (...) {
    for (const std::uint64_t offset : placed) free(offset);
    throw;
  }
}

void InputBlocks::place_block(BlockPlace& place, const std::vector<TensorView>& tensors) {
  BlockHeader header;
  const std::uint64_t bytes = lay_out_block(tensors, header);
  std::uint64_t offset = 0;
  {
    MutexLock lock(mutex_);
    offset = allocator_.allocate(bytes);
  }
  std::byte* memory = store_.arena(kCoordinatorArena).data(offset, bytes);
  std::memcpy(memory, &header, sizeof(header));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].desc.is_absent()) continue;
    std::memcpy(memory + header.tensors[i].offset, tensors[i].data, tensors[i].desc.bytes());
  }
  place = {.slot = 0, .arena = kCoordinatorArena, .offset = offset, .bytes = bytes};
}

}  // namespace rp
