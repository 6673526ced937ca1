#include "common/dtype.h"

#include <gtest/gtest.h>

#include <vector>

namespace rp {
namespace {

// docs/formats/blocks.md defines these values: other processes read the numbers, and other programs
// the names.
TEST(DTypes, HaveTheDocumentedNumbersNamesAndSizes) {
  struct Row {
    DType dtype;
    std::uint32_t number;
    std::string_view name;
    std::uint64_t bytes;
  };
  const std::vector<Row> rows = {{DType::kFloat32, 0, "F32", 4},        {DType::kBFloat16, 1, "BF16", 2},
                                 {DType::kFloat16, 2, "F16", 2},        {DType::kFloat64, 3, "F64", 8},
                                 {DType::kInt64, 4, "I64", 8},          {DType::kInt32, 5, "I32", 4},
                                 {DType::kInt16, 6, "I16", 2},          {DType::kInt8, 7, "I8", 1},
                                 {DType::kUInt8, 8, "U8", 1},           {DType::kBool, 9, "BOOL", 1},
                                 {DType::kFloat8E4m3, 10, "F8_E4M3", 1}};
  ASSERT_EQ(rows.size(), kNumDTypes);
  for (const Row& row : rows) {
    EXPECT_EQ(static_cast<std::uint32_t>(row.dtype), row.number) << row.name;
    EXPECT_EQ(dtype_name(row.dtype), row.name);
    EXPECT_EQ(dtype_from_name(row.name), row.dtype) << row.name;
    EXPECT_EQ(dtype_bytes(row.dtype), row.bytes) << row.name;
  }
}

TEST(DTypes, ANameThatNoneHasIsNone) {
  for (const std::string_view name : {"", "F8_E5M2", "bf16", "F3", "F322"})
    EXPECT_FALSE(dtype_from_name(name).has_value()) << name;
}

TEST(DTypes, WorkersComputeInThree) {
  std::vector<DType> working;
  for (std::size_t i = 0; i < kNumDTypes; ++i) {
    if (is_working_dtype(static_cast<DType>(i))) working.push_back(static_cast<DType>(i));
  }
  EXPECT_EQ(working, (std::vector<DType>{DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
}

}  // namespace
}  // namespace rp
