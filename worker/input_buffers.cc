#include "worker/input_buffers.h"

#include <cstring>

#include "common/check.h"

namespace rp {

void InputBuffers::upload(std::uint64_t n, BlockKind kind, const std::byte* block, std::uint64_t bytes, Stream& stream) {
  Place& place = places_[n % kPlaces];
  std::vector<TensorView>& views = kind == BlockKind::kActivation ? place.inputs.activation
                                   : kind == BlockKind::kGradient ? place.inputs.gradient
                                                                  : place.inputs.arguments;
  // The header is read by the host; the data goes to the device in one piece.
  BlockHeader header;
  RP_ASSERT(bytes >= sizeof(header));
  std::memcpy(&header, block, sizeof(header));
  RP_ASSERT(header.num_tensors <= kMaxTensors);
  const std::uint64_t start = align_up(sizeof(BlockHeader), kTensorAlignment);
  std::byte* memory = place.memory[static_cast<std::size_t>(kind)].resize(device_, bytes);
  stream.copy(memory + start, block + start, bytes - start);
  for (std::uint64_t i = 0; i < header.num_tensors; ++i) {
    const TensorDesc& desc = header.tensors[i];
    views.push_back({desc, desc.is_absent() ? nullptr : memory + desc.offset});
  }
}

}  // namespace rp
