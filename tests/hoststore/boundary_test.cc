#include "hoststore/boundary.h"

#include <gtest/gtest.h>

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

// docs/formats/blocks.md: other processes read these bytes.
TEST(Boundary, HasTheDocumentedOffsets) {
  EXPECT_EQ(offsetof(TensorDesc, dtype), 0U);
  EXPECT_EQ(offsetof(TensorDesc, rank), 4U);
  EXPECT_EQ(offsetof(TensorDesc, offset), 8U);
  EXPECT_EQ(offsetof(TensorDesc, shape), 16U);
  EXPECT_EQ(offsetof(BlockHeader, num_tensors), 0U);
  EXPECT_EQ(offsetof(BlockHeader, tensors), 8U);
  EXPECT_EQ(sizeof(BlockHeader), 1288U);
}

TEST(Boundary, KnowsTheSizeOfEachDtype) {
  const std::vector<std::pair<DType, std::uint64_t>> sizes = {
      {DType::kFloat32, 4}, {DType::kBFloat16, 2}, {DType::kFloat16, 2}, {DType::kFloat64, 8}, {DType::kInt64, 8},
      {DType::kInt32, 4},   {DType::kInt16, 2},    {DType::kInt8, 1},    {DType::kUInt8, 1},   {DType::kBool, 1}};
  for (const auto& [dtype, bytes] : sizes) EXPECT_EQ(tensor(dtype, {3, 5}).desc.bytes(), 15 * bytes);
  EXPECT_EQ(tensor(DType::kFloat32, {}).desc.bytes(), 4U);  // a scalar
  EXPECT_EQ(tensor(DType::kFloat32, {4, 0, 2}).desc.bytes(), 0U);
}

TEST(Boundary, AlignsEachTensorBehindTheHeaderWithoutOverlap) {
  const std::vector<TensorView> tensors = {tensor(DType::kBFloat16, {3, 11}), tensor(DType::kBool, {1}),
                                           tensor(DType::kInt64, {8})};
  BlockHeader header;
  const std::uint64_t bytes = lay_out_block(tensors, header);
  ASSERT_EQ(header.num_tensors, 3U);
  std::uint64_t end = sizeof(BlockHeader);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(header.tensors[i].offset % kTensorAlignment, 0U);
    EXPECT_GE(header.tensors[i].offset, end);
    EXPECT_EQ(header.tensors[i].dtype, tensors[i].desc.dtype);
    EXPECT_EQ(header.tensors[i].shape, tensors[i].desc.shape);
    end = header.tensors[i].offset + header.tensors[i].bytes();
  }
  EXPECT_GE(bytes, end);
  EXPECT_LT(bytes - end, kTensorAlignment);
}

TEST(Boundary, KeepsThePlaceOfAnAbsentTensor) {
  const std::vector<TensorView> tensors = {TensorView{}, tensor(DType::kFloat32, {2})};
  BlockHeader header;
  const std::uint64_t bytes = lay_out_block(tensors, header);
  EXPECT_EQ(header.num_tensors, 2U);
  EXPECT_TRUE(header.tensors[0].is_absent());
  EXPECT_EQ(header.tensors[0].bytes(), 0U);
  EXPECT_FALSE(header.tensors[1].is_absent());
  EXPECT_EQ(bytes, align_up(sizeof(BlockHeader), kTensorAlignment) + kTensorAlignment);
}

TEST(Boundary, CanBeEmpty) {
  BlockHeader header;
  EXPECT_EQ(lay_out_block({}, header), align_up(sizeof(BlockHeader), kTensorAlignment));
  EXPECT_EQ(header.num_tensors, 0U);
}

TEST(BoundaryDeathTest, RefusesMoreTensorsThanTheHeaderHolds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<TensorView> tensors(kMaxTensors + 1);
  BlockHeader header;
  EXPECT_DEATH((void)lay_out_block(tensors, header), "kMaxTensors");
}

}  // namespace
}  // namespace rp
