// hoststore/boundary.h
// Defines the layout of a block: the data of one boundary (activation, gradient, input, ...) of one
// microbatch, which passes between stages through an arena. A block begins with a list of tensor
// descriptions. Byte format: docs/formats/blocks.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/dtype.h"
#include "common/shm_safe.h"

namespace rp {

inline constexpr int kMaxRank = 8;
inline constexpr std::uint64_t kTensorAlignment = 64;

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Describes a dense, row-major tensor. An absent tensor of a list has rank -1.
struct TensorDesc {
  using ShmFormat = void;
  DType dtype = DType::kFloat32;
  std::int32_t rank = -1;
  std::uint64_t offset = 0;  // of the tensor's data, from the start of the block
  std::array<std::int64_t, kMaxRank> shape{};

  [[nodiscard]] bool is_absent() const { return rank < 0; }
  [[nodiscard]] std::uint64_t bytes() const {
    if (is_absent()) return 0;
    std::uint64_t count = dtype_bytes(dtype);
    for (int i = 0; i < rank; ++i) count *= static_cast<std::uint64_t>(shape[i]);
    return count;
  }
};
static_assert(sizeof(TensorDesc) == 80 && ShmSafe<TensorDesc>);

// The header of a block. It is followed by TensorDesc[num_tensors], then the structure, then the
// tensors' data, each tensor aligned to kTensorAlignment.
struct BlockHeader {
  using ShmFormat = void;
  std::uint64_t num_tensors = 0;
  // Length of the structure, which describes what the tensors mean to the block's writer and
  // readers.
  std::uint64_t structure_bytes = 0;
};
static_assert(sizeof(BlockHeader) == 16 && ShmSafe<BlockHeader>);

// A tensor somewhere in this process's memory, or an absent one (rank -1). Does not own its data.
struct TensorView {
  TensorDesc desc;
  const std::byte* data = nullptr;
};

// The offsets and lengths of the parts of a block.
struct BlockLayout {
  std::vector<TensorDesc> tensors;  // with their offsets
  std::uint64_t structure_bytes = 0;
  std::uint64_t data_offset = 0;
  std::uint64_t bytes = 0;
};
[[nodiscard]] BlockLayout lay_out_block(std::span<const TensorView> tensors, std::uint64_t structure_bytes = 0);

// Writes all of a block except the tensors' data. REQUIRES: `structure` has the layout's
// structure_bytes.
void write_block_head(std::byte* block, const BlockLayout& layout, std::span<const std::byte> structure = {});

// A block's header as read from memory. Its spans point into the block and are valid as long as the
// block is.
struct BlockHead {
  std::span<const TensorDesc> tensors;
  std::span<const std::byte> structure;
  std::uint64_t data_offset = 0;

  // Returns the tensors of the block. `data`: the address of the block's byte data_offset, where
  // the tensors' data begins.
  [[nodiscard]] std::vector<TensorView> views(const std::byte* data) const;
};
// REQUIRES: `block` has `bytes` bytes, is aligned to 8, and was written by write_block_head().
[[nodiscard]] BlockHead read_block_head(const std::byte* block, std::uint64_t bytes);

}  // namespace rp
