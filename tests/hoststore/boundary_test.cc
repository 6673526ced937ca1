#include "hoststore/boundary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rp {
namespace {

TensorView tensor(DType dtype, std::vector<std::int64_t> shape) {
  TensorView view;
  view.desc.dtype = dtype;
  view.desc.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view.desc.shape.begin());
  return view;
}

// docs/formats/blocks.md defines these offsets, because other processes read these bytes.
TEST(Boundary, HasTheDocumentedOffsets) {
  EXPECT_EQ(offsetof(TensorDesc, dtype), 0U);
  EXPECT_EQ(offsetof(TensorDesc, rank), 4U);
  EXPECT_EQ(offsetof(TensorDesc, offset), 8U);
  EXPECT_EQ(offsetof(TensorDesc, shape), 16U);
  EXPECT_EQ(offsetof(BlockHeader, num_tensors), 0U);
  EXPECT_EQ(offsetof(BlockHeader, structure_bytes), 8U);
  EXPECT_EQ(sizeof(BlockHeader), 16U);
  EXPECT_EQ(sizeof(TensorDesc), 80U);
}

TEST(Boundary, KnowsTheSizeOfEachDtype) {
  const std::vector<std::pair<DType, std::uint64_t>> sizes = {
      {DType::kFloat32, 4}, {DType::kBFloat16, 2}, {DType::kFloat16, 2}, {DType::kFloat64, 8}, {DType::kInt64, 8},
      {DType::kInt32, 4},   {DType::kInt16, 2},    {DType::kInt8, 1},    {DType::kUInt8, 1},   {DType::kBool, 1}};
  for (const auto& [dtype, bytes] : sizes) EXPECT_EQ(tensor(dtype, {3, 5}).desc.bytes(), 15 * bytes);
  EXPECT_EQ(tensor(DType::kFloat32, {}).desc.bytes(), 4U);  // a scalar
  EXPECT_EQ(tensor(DType::kFloat32, {4, 0, 2}).desc.bytes(), 0U);
}

TEST(Boundary, AlignsEachTensorBehindTheHeadWithoutOverlap) {
  const std::vector<TensorView> tensors = {tensor(DType::kBFloat16, {3, 11}), tensor(DType::kBool, {1}),
                                           tensor(DType::kInt64, {8})};
  const BlockLayout layout = lay_out_block(tensors, 7);
  ASSERT_EQ(layout.tensors.size(), 3U);
  std::uint64_t end = sizeof(BlockHeader) + 3 * sizeof(TensorDesc) + 7;
  EXPECT_GE(layout.data_offset, end);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(layout.tensors[i].offset % kTensorAlignment, 0U);
    EXPECT_GE(layout.tensors[i].offset, end);
    EXPECT_EQ(layout.tensors[i].dtype, tensors[i].desc.dtype);
    EXPECT_EQ(layout.tensors[i].shape, tensors[i].desc.shape);
    end = layout.tensors[i].offset + layout.tensors[i].bytes();
  }
  EXPECT_GE(layout.bytes, end);
  EXPECT_LT(layout.bytes - end, kTensorAlignment);
}

TEST(Boundary, IsReadAsItWasWritten) {
  const std::vector<TensorView> tensors = {tensor(DType::kFloat32, {2, 3}), TensorView{}, tensor(DType::kInt64, {})};
  const std::vector<std::byte> structure = {std::byte{1}, std::byte{2}, std::byte{3}};
  const BlockLayout layout = lay_out_block(tensors, structure.size());
  std::vector<std::uint64_t> memory(layout.bytes / 8);
  auto* block = reinterpret_cast<std::byte*>(memory.data());
  write_block_head(block, layout, structure);
  const BlockHead head = read_block_head(block, layout.bytes);
  ASSERT_EQ(head.tensors.size(), 3U);
  EXPECT_TRUE(std::equal(structure.begin(), structure.end(), head.structure.begin(), head.structure.end()));
  EXPECT_EQ(head.data_offset, layout.data_offset);
  const std::vector<TensorView> views = head.views(block + head.data_offset);
  EXPECT_EQ(views[0].data, block + layout.tensors[0].offset);
  EXPECT_EQ(views[0].desc.shape[1], 3);
  EXPECT_TRUE(views[1].desc.is_absent());
  EXPECT_EQ(views[1].data, nullptr);
  EXPECT_EQ(views[2].desc.rank, 0);
}

TEST(Boundary, CanBeEmptyAndHoldsAnyNumberOfTensors) {
  EXPECT_EQ(lay_out_block({}).bytes, kTensorAlignment);
  const std::vector<TensorView> many(1000, tensor(DType::kInt8, {3}));
  const BlockLayout layout = lay_out_block(many);
  EXPECT_EQ(layout.tensors.size(), 1000U);
  EXPECT_EQ(layout.bytes - layout.data_offset, 64'000U);
}

TEST(BoundaryDeathTest, ABlockThatIsShorterThanItsHeadSaysIsNotRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<std::uint64_t> memory(100);
  memory[0] = 50;  // num_tensors
  EXPECT_DEATH((void)read_block_head(reinterpret_cast<const std::byte*>(memory.data()), 800), "bytes");
}

}  // namespace
}  // namespace rp
