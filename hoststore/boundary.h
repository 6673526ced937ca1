// hoststore/boundary.h
// What crosses a layer boundary, in shared memory: a block that begins with a list of tensor descriptions.
// Byte format: docs/formats/blocks.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/shm_safe.h"

namespace rp {

inline constexpr int kMaxRank = 8;
inline constexpr int kMaxTensors = 16;  // of one layer boundary or one list of arguments
inline constexpr std::uint64_t kTensorAlignment = 64;

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

enum class DType : std::uint32_t { kFloat32, kBFloat16, kFloat16, kFloat64, kInt64, kInt32, kInt16, kInt8, kUInt8, kBool };

[[nodiscard]] constexpr std::uint64_t dtype_bytes(DType dtype) {
  constexpr std::array<std::uint64_t, 10> kBytes = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1};
  return kBytes[static_cast<std::size_t>(dtype)];
}

// A dense, row-major tensor. An absent tensor of a list has rank -1.
struct TensorDesc {
  using ShmFormat = void;
  DType dtype = DType::kFloat32;
  std::int32_t rank = -1;
  std::uint64_t offset = 0;  // of its data, from the start of the block
  std::array<std::int64_t, kMaxRank> shape{};

  [[nodiscard]] bool is_absent() const { return rank < 0; }
  [[nodiscard]] std::uint64_t bytes() const {
    if (is_absent()) return 0;
    std::uint64_t count = dtype_bytes(dtype);
    for (int i = 0; i < rank; ++i) count *= static_cast<std::uint64_t>(shape[static_cast<std::size_t>(i)]);
    return count;
  }
};
static_assert(sizeof(TensorDesc) == 80 && ShmSafe<TensorDesc>);

// The start of a block; the tensors' data follows, each aligned to kTensorAlignment.
struct BlockHeader {
  using ShmFormat = void;
  std::uint64_t num_tensors = 0;
  std::array<TensorDesc, kMaxTensors> tensors{};
};
static_assert(sizeof(BlockHeader) == 8 + 80 * kMaxTensors && ShmSafe<BlockHeader>);

// A tensor somewhere in this process's memory, or (rank -1) an absent one. Does not own its data.
struct TensorView {
  TensorDesc desc;
  const std::byte* data = nullptr;
};

// Fills in the header of a block that holds `tensors` and returns the bytes that the block needs.
// REQUIRES: at most kMaxTensors tensors.
[[nodiscard]] std::uint64_t lay_out_block(std::span<const TensorView> tensors, BlockHeader& header);

}  // namespace rp
