#include "hoststore/boundary.h"

#include "common/check.h"

namespace rp {

std::uint64_t lay_out_block(std::span<const TensorView> tensors, BlockHeader& header) {
  RP_ASSERT(tensors.size() <= kMaxTensors);
  header = BlockHeader{};
  header.num_tensors = tensors.size();
  std::uint64_t bytes = align_up(sizeof(BlockHeader), kTensorAlignment);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    header.tensors[i] = tensors[i].desc;
    header.tensors[i].offset = bytes;
    bytes += align_up(tensors[i].desc.bytes(), kTensorAlignment);
  }
  return bytes;
}

}  // namespace rp
