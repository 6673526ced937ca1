#include "worker/input_buffers.h"

#include <utility>

#include "common/check.h"

namespace rp {

std::span<const std::byte> InputBuffers::upload(std::uint64_t n, BlockKind kind, int index, const std::byte* block,
                                                std::uint64_t bytes, Stream& stream) {
  Place& place = places_[n % kPlaces];
  // The host reads the head; the data is copied to the device in one piece.
  const BlockHead head = read_block_head(block, bytes);
  const std::size_t number = place.inputs.blocks.size();
  if (place.memory.size() <= number) place.memory.resize(number + 1);
  std::byte* memory = place.memory[number].resize(device_, bytes - head.data_offset, MemoryUse::kInputs);
  stream.copy(memory, block + head.data_offset, bytes - head.data_offset);
  InputBlock input{kind, index, head.views(memory), {head.structure.begin(), head.structure.end()}};
  RP_ASSERT(!place.inputs.gradient);  // the gradient is uploaded last
  if (kind == BlockKind::kGradient) {
    place.inputs.gradient = std::move(input);
  } else {
    place.inputs.blocks.push_back(std::move(input));
  }
  return {memory, bytes - head.data_offset};
}

}  // namespace rp
