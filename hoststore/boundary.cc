#include "hoststore/boundary.h"

#include <cstring>

#include "common/check.h"

namespace rp {

namespace {

std::uint64_t data_offset_of(const BlockHeader& header) {
  return align_up(sizeof(BlockHeader) + header.num_tensors * sizeof(TensorDesc) + header.structure_bytes,
                  kTensorAlignment);
}

}  // namespace

BlockLayout lay_out_block(std::span<const TensorView> tensors, std::uint64_t structure_bytes) {
  BlockLayout layout;
  layout.structure_bytes = structure_bytes;
  layout.data_offset = data_offset_of({.num_tensors = tensors.size(), .structure_bytes = structure_bytes});
  layout.bytes = layout.data_offset;
  layout.tensors.reserve(tensors.size());
  for (const TensorView& tensor : tensors) {
    layout.tensors.push_back(tensor.desc);
    layout.tensors.back().offset = layout.bytes;
    layout.bytes += align_up(tensor.desc.bytes(), kTensorAlignment);
  }
  return layout;
}

void write_block_head(std::byte* block, const BlockLayout& layout, std::span<const std::byte> structure) {
  RP_ASSERT(structure.size() == layout.structure_bytes);
  const BlockHeader header{.num_tensors = layout.tensors.size(), .structure_bytes = layout.structure_bytes};
  std::memcpy(block, &header, sizeof(header));
  block += sizeof(header);
  if (!layout.tensors.empty()) std::memcpy(block, layout.tensors.data(), layout.tensors.size() * sizeof(TensorDesc));
  if (!structure.empty())
    std::memcpy(block + layout.tensors.size() * sizeof(TensorDesc), structure.data(), structure.size());
}

BlockHead read_block_head(const std::byte* block, std::uint64_t bytes) {
  BlockHeader header;
  RP_ASSERT(bytes >= sizeof(header));
  std::memcpy(&header, block, sizeof(header));
  RP_ASSERT(header.num_tensors <= bytes / sizeof(TensorDesc) && header.structure_bytes <= bytes);
  const std::uint64_t data_offset = data_offset_of(header);
  RP_ASSERT(data_offset <= bytes);
  const std::byte* tensors = block + sizeof(header);
  return {.tensors = {reinterpret_cast<const TensorDesc*>(tensors), header.num_tensors},
          .structure = {tensors + header.num_tensors * sizeof(TensorDesc), header.structure_bytes},
          .data_offset = data_offset};
}

std::vector<TensorView> BlockHead::views(const std::byte* data) const {
  std::vector<TensorView> result;
  result.reserve(tensors.size());
  for (const TensorDesc& desc : tensors) {
    result.push_back({desc, desc.is_absent() ? nullptr : data + (desc.offset - data_offset)});
  }
  return result;
}

}  // namespace rp
