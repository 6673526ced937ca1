#include "models/layers/scalar_type.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

TEST(ScalarTypes, AreThoseOfLibTorchAndBack) {
  for (std::size_t i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (is_layer_dtype(dtype)) {
      EXPECT_EQ(dtype_of(scalar_type_of(dtype)), dtype) << dtype_name(dtype);
    }
    EXPECT_EQ(c10::elementSize(scalar_type_of(dtype)), dtype_bytes(dtype)) << dtype_name(dtype);
    EXPECT_EQ(is_working_dtype(scalar_type_of(dtype)), is_working_dtype(dtype)) << dtype_name(dtype);
  }
  EXPECT_EQ(scalar_type_of(DType::kBFloat16), at::kBFloat16);
  EXPECT_EQ(scalar_type_of(DType::kInt16), at::kShort);
}

TEST(ScalarTypes, OneThatTheRuntimeDoesNotHaveIsRefused) {
  EXPECT_FALSE(is_working_dtype(at::kComplexFloat));
  expect_error(ExitCode::kUsage, {"dtype ComplexFloat", "cannot travel"}, [] { (void)dtype_of(at::kComplexFloat); });
}

TEST(ScalarTypes, AnEightBitFloatIsForFilesOnly) {
  EXPECT_EQ(scalar_type_of(DType::kFloat8E4m3), at::kFloat8_e4m3fn);
  EXPECT_FALSE(is_working_dtype(at::kFloat8_e4m3fn));
  expect_error(ExitCode::kUsage, {"Float8_e4m3fn", "cannot travel"}, [] { (void)dtype_of(at::kFloat8_e4m3fn); });
}

}  // namespace
}  // namespace rp
