// Compares the expansion of quantised weights with the formats' definitions.
#include "kernels/cpu/quantised/weight_kernels.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/float16.h"
#include "tests/kernels/quantised/defined_values.h"
#include "tests/kernels/quantised/random_weights.h"

namespace rp::models {
namespace {

// Returns the bits of a value in a format.
std::uint32_t bits_in(DType dtype, float value) {
  if (dtype == DType::kFloat32) return std::bit_cast<std::uint32_t>(value);
  return dtype == DType::kBFloat16 ? bf16_from_float(value) : fp16_from_float(value);
}

// An array of elements between two guards.
class Elements {
 public:
  Elements(DType dtype, std::int64_t count) : dtype_(dtype), bytes_((count + 2 * kGuard) * size(), kUntouched) {}
  [[nodiscard]] void* data() { return bytes_.data() + kGuard * size(); }
  // Element i, also in a guard.
  [[nodiscard]] std::uint32_t bits(std::int64_t i) const {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes_.data() + (i + kGuard) * size(), size());
    return bits;
  }
  [[nodiscard]] bool is_untouched(std::int64_t i) const {
    return bits(i) == (dtype_ == DType::kFloat32 ? 0xa5a5a5a5U : 0xa5a5U);
  }
  static constexpr std::int64_t kGuard = 64;

 private:
  static constexpr std::byte kUntouched{0xa5};
  [[nodiscard]] std::size_t size() const { return dtype_bytes(dtype_); }
  DType dtype_;
  std::vector<std::byte> bytes_;
};

bool is_nan_in(DType dtype, std::uint32_t bits) {
  if (dtype == DType::kFloat32) return std::isnan(std::bit_cast<float>(bits));
  const auto half = static_cast<std::uint16_t>(bits);
  return std::isnan(dtype == DType::kBFloat16 ? float_from_bf16(half) : float_from_fp16(half));
}

// Expands [begin, end) with each table and expects the definition's bits there, and no others anywhere.
void expect_values(const QuantisedShape& shape, const std::vector<std::byte>& bytes, const std::vector<float>& defined,
                   DType dtype, std::int64_t begin, std::int64_t end) {
  const QuantisedWeights weights{shape, bytes.data()};
  const std::int64_t count = shape.matrices * shape.num_elements();
  for (const WeightKernels* table : usable_weight_kernels()) {
    SCOPED_TRACE(std::string(table->name) + " " + text_of(shape) + " [" + std::to_string(begin) + ", " +
                 std::to_string(end) + ")");
    Elements values(dtype, count);
    expand_weights(*table, dtype, weights, values.data(), begin, end);
    for (std::int64_t i = -Elements::kGuard; i < count + Elements::kGuard; ++i) {
      if (i < begin || i >= end) {
        ASSERT_TRUE(values.is_untouched(i)) << i;
        continue;
      }
      const float expected = defined[i];
      if (std::isnan(expected)) {
        ASSERT_TRUE(is_nan_in(dtype, values.bits(i))) << i;
      } else {
        ASSERT_EQ(values.bits(i), bits_in(dtype, expected)) << i << ": " << expected;
      }
    }
  }
}

void expect_all_values(const QuantisedShape& shape, const std::vector<std::byte>& bytes) {
  const std::vector<float> defined = defined_values({shape, bytes.data()});
  const auto count = static_cast<std::int64_t>(defined.size());
  for (const DType dtype : kElementTypes) expect_values(shape, bytes, defined, dtype, 0, count);
}

TEST(QuantisedLayout, PartsBeginAtMultiplesOf64BytesAndMatricesAreApart) {
  // 195 elements a matrix: 98 bytes of codes, 4 blocks.
  const QuantisedShape nf4{WeightFormat::kNf4, 2, 3, 65};
  EXPECT_EQ(QuantisedLayout(nf4).scales, 256U);
  EXPECT_EQ(QuantisedLayout(nf4).num_bytes, 256U + 64);
  const QuantisedShape nested{WeightFormat::kNf4Double, 20, 3, 65};
  EXPECT_EQ(QuantisedLayout(nested).scales, 1984U);               // 20 x 98
  EXPECT_EQ(QuantisedLayout(nested).nested_scales, 1984U + 128);  // 20 x 4 bytes
  EXPECT_EQ(QuantisedLayout(nested).offsets, 1984U + 128 + 128);  // 20 floats
  EXPECT_EQ(QuantisedLayout(nested).num_bytes, 1984U + 3 * 128);  // 20 floats
  const QuantisedShape fp8{WeightFormat::kFp8Blocks, 2, 129, 257};
  EXPECT_EQ(fp8.num_scales(), 2 * 3);
  const std::vector<std::byte> bytes(QuantisedLayout(fp8).num_bytes);
  const QuantisedMatrix second = matrix_of({fp8, bytes.data()}, 1);
  EXPECT_EQ(second.codes, reinterpret_cast<const std::uint8_t*>(bytes.data()) + 129 * 257);
  EXPECT_EQ(second.scales, bytes.data() + QuantisedLayout(fp8).scales + 6 * 4);
}

TEST(ExpandWeights, EveryCodeWithEveryByteScaleIsTheDefinitionsValue) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNf4Double}) {
    // 256 blocks for each scale contain all bytes at all places of a block.
    const QuantisedShape shape{format, 1, 256, 256 * (format == WeightFormat::kMxfp4 ? 32 : 64)};
    std::vector<std::byte> bytes = random_weights(shape, 1);
    const QuantisedLayout layout(shape);
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(shape.code_bytes()); ++i) {
      bytes[i] = static_cast<std::byte>(i + i / 256);
    }
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(shape.num_scales()); ++i) {
      bytes[layout.scales + i] = static_cast<std::byte>(i / 256);
    }
    expect_all_values(shape, bytes);
  }
}

TEST(ExpandWeights, EveryCodeWithScalesOfAnySizeIsTheDefinitionsValue) {
  for (const WeightFormat format : {WeightFormat::kNf4, WeightFormat::kFp8Blocks, WeightFormat::kFp8Tensor}) {
    for (const float scale : {1.0F, 0.037F, 3e38F, 1e-30F, 1e-38F, 1e-44F, 0.0F, -2.5F}) {
      const QuantisedShape shape{format, 1, 1, 512};
      std::vector<std::byte> bytes = random_weights(shape, 1);
      for (std::size_t i = 0; i < static_cast<std::size_t>(shape.code_bytes()); ++i)
        bytes[i] = static_cast<std::byte>(i);
      const QuantisedLayout layout(shape);
      for (std::int64_t i = 0; i < shape.num_scales(); ++i) {
        std::memcpy(bytes.data() + layout.scales + 4 * i, &scale, sizeof(float));
      }
      expect_all_values(shape, bytes);
    }
  }
}

TEST(ExpandWeights, RandomWeightsOfEveryShapeAreTheDefinitionsValues) {
  for (const WeightFormat format : kWeightFormats) {
    for (const QuantisedShape& shape : border_shapes(format)) {
      expect_all_values(shape, random_weights(shape, 2, true));
    }
  }
}

TEST(ExpandWeights, AnyRangeOfElementsIsWrittenAndNothingElse) {
  std::mt19937 generator(3);
  for (const WeightFormat format : kWeightFormats) {
    for (const QuantisedShape& shape : border_shapes(format)) {
      const std::vector<std::byte> bytes = random_weights(shape, 4);
      const std::vector<float> defined = defined_values({shape, bytes.data()});
      for (const DType dtype : kElementTypes) {
        const auto at = [&] {
          return static_cast<std::int64_t>(generator() % static_cast<unsigned>(defined.size() + 1));
        };
        const std::int64_t one = at(), other = at();
        expect_values(shape, bytes, defined, dtype, std::min(one, other), std::max(one, other));
      }
    }
  }
}

TEST(QuantisedLayoutDeathTest, BlocksOfMxfp4MustDivideARow) {
  EXPECT_DEATH(QuantisedLayout({WeightFormat::kMxfp4, 1, 2, 48}), "columns.*does not hold");
}

TEST(ExpandWeightsDeathTest, OtherDTypesAreRefused) {
  const QuantisedShape shape{WeightFormat::kNf4, 1, 1, 64};
  const std::vector<std::byte> bytes = random_weights(shape, 5);
  double values[64];
  EXPECT_DEATH(expand_weights(weight_kernels(), DType::kFloat64, {shape, bytes.data()}, values, 0, 64),
               "dtype.*does not hold");
}

}  // namespace
}  // namespace rp::models
