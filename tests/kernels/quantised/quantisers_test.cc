// Compares the quantisers with their rules, computed by search, and with the expansion.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "kernels/cpu/float16.h"
#include "kernels/cpu/quantised/weight_kernels.h"
#include "tests/common/random_floats.h"
#include "tests/kernels/quantised/random_weights.h"

namespace rp::models {
namespace {

// Values, and the same array as elements of a dtype that can represent them.
struct Values {
  Values(DType dtype, const std::vector<float>& wanted) : dtype(dtype) {
    for (const float value : wanted) {
      const std::uint16_t half = dtype == DType::kBFloat16 ? bf16_from_float(value) : fp16_from_float(value);
      halves.push_back(half);
      floats.push_back(dtype == DType::kFloat32    ? value
                       : dtype == DType::kBFloat16 ? float_from_bf16(half)
                                                   : float_from_fp16(half));
    }
  }
  [[nodiscard]] const void* data() const {
    return dtype == DType::kFloat32 ? static_cast<const void*>(floats.data()) : halves.data();
  }
  DType dtype;
  std::vector<float> floats;
  std::vector<std::uint16_t> halves;
};

// Weights of a normal distribution. Some are large, some are 0, and some are between two codes of a
// block whose largest magnitude is 1.
std::vector<float> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  NormalFloats normal(0, 0.02F);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = generator() % 100 == 0 ? 0.0F : normal(generator);
  for (std::size_t i = 0; i < values.size(); i += 97) values[i] *= 30;
  for (std::size_t first = 0; first + 64 <= values.size(); first += 640) {
    for (std::size_t i = 0; i < 15; ++i) values[first + i] = (kNf4Codes.at[i] + kNf4Codes.at[i + 1]) / 2;
    values[first + 15] = -1;
    for (std::size_t i = 16; i < 64; ++i) values[first + i] = static_cast<float>(i - 16) / 64 - 0.375F;
  }
  return values;
}

std::vector<std::byte> quantised(const WeightKernels& table, const QuantisedShape& shape, const Values& values) {
  std::vector<std::byte> bytes(QuantisedLayout(shape).num_bytes);
  const auto matrix_bytes = static_cast<std::size_t>(shape.num_elements()) * dtype_bytes(values.dtype);
  for (std::int64_t matrix = 0; matrix < shape.matrices; ++matrix) {
    const auto* first = static_cast<const std::byte*>(values.data()) + static_cast<std::size_t>(matrix) * matrix_bytes;
    EXPECT_TRUE(quantise_weights(table, values.dtype, first, shape, matrix, bytes.data()));
  }
  return bytes;
}

Values expanded(const QuantisedShape& shape, const std::vector<std::byte>& bytes, DType dtype) {
  Values values(dtype, std::vector<float>(static_cast<std::size_t>(shape.matrices * shape.num_elements())));
  expand_weights(weight_kernels(), dtype, {shape, bytes.data()}, const_cast<void*>(values.data()), 0,
                 shape.matrices * shape.num_elements());
  return values;
}

int code_of(const QuantisedMatrix& m, std::int64_t i) {
  if (m.format == WeightFormat::kFp8Blocks || m.format == WeightFormat::kFp8Tensor) return m.codes[i];
  const bool is_high = (i % 2 == 0) == (m.format != WeightFormat::kMxfp4);
  return is_high ? m.codes[i / 2] >> 4 : m.codes[i / 2] & 0xf;
}

// Calls visit(matrix, the matrix's first value) for each matrix of a parameter.
void for_each_matrix(const QuantisedShape& shape, const std::vector<std::byte>& bytes, const Values& values,
                     const std::function<void(const QuantisedMatrix&, const float*)>& visit) {
  for (std::int64_t matrix = 0; matrix < shape.matrices; ++matrix) {
    visit(matrix_of({shape, bytes.data()}, matrix), values.floats.data() + matrix * shape.num_elements());
  }
}

float largest_of(const float* x, std::int64_t begin, std::int64_t end) {
  float largest = 0;
  for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

TEST(QuantiseWeights, AllInstructionSetsWriteTheSameBytes) {
  for (const WeightFormat format : kWeightFormats) {
    for (const QuantisedShape& shape : border_shapes(format)) {
      for (const DType dtype : kElementTypes) {
        const Values values(dtype, random_values(shape.matrices * shape.num_elements(), 1));
        const std::vector<std::byte> expected = quantised(kPortableWeightKernels, shape, values);
        for (const WeightKernels* table : usable_weight_kernels()) {
          ASSERT_EQ(quantised(*table, shape, values), expected) << table->name << " " << text_of(shape);
        }
      }
    }
  }
}

TEST(QuantiseWeights, Nf4TakesTheNearestOfSixteenValuesAndTheLowerOneInATie) {
  for (const QuantisedShape& shape : border_shapes(WeightFormat::kNf4)) {
    const Values values(DType::kFloat32, random_values(shape.matrices * shape.num_elements(), 2));
    const std::vector<std::byte> bytes = quantised(weight_kernels(), shape, values);
    for_each_matrix(shape, bytes, values, [&](const QuantisedMatrix& m, const float* x) {
      for (std::int64_t i = 0; i < shape.num_elements(); ++i) {
        const std::int64_t first = i / 64 * 64, end = std::min(first + 64, shape.num_elements());
        const float largest = largest_of(x, first, end);
        ASSERT_EQ(static_cast<const float*>(m.scales)[i / 64], std::max(largest, end - first < 64 ? 1e-38F : 0.0F));
        const float scaled =
            end - first == 64 ? x[i] * (1 / std::max(largest, 1e-38F)) : x[i] / std::max(largest, 1e-38F);
        int nearest = 0;
        for (int code = 1; code < 16; ++code) {
          const float border = (kNf4Codes.at[code - 1] + kNf4Codes.at[code]) / 2;
          if (scaled > border) nearest = code;
        }
        ASSERT_EQ(code_of(m, i), nearest) << text_of(shape) << " " << i << ": " << scaled;
      }
    });
  }
}

// A quotient and a product with the reciprocal differ in the last bit, which matters next to a border.
TEST(QuantiseWeights, Nf4DividesOnlyShortBlocksByTheirScales) {
  int num_different = 0;
  for (float scale = 0.01F; scale < 0.02F; scale += 1e-5F) {
    for (int k = 0; k < 15; ++k) {
      const float border = (kNf4Codes.at[k] + kNf4Codes.at[k + 1]) / 2, x = border * scale;
      if ((x / scale > border) == (x * (1 / scale) > border)) continue;
      ++num_different;
      for (const std::int64_t count : {2, 64}) {
        std::vector<float> wanted(static_cast<std::size_t>(count), scale);
        wanted[1] = x;
        const QuantisedShape shape{WeightFormat::kNf4, 1, 1, count};
        const std::vector<std::byte> bytes = quantised(weight_kernels(), shape, Values(DType::kFloat32, wanted));
        const float scaled = count < 64 ? x / scale : x * (1 / scale);
        ASSERT_EQ(code_of(matrix_of({shape, bytes.data()}, 0), 1), scaled > border ? k + 1 : k) << scale << " " << x;
      }
    }
  }
  EXPECT_GT(num_different, 100);
}

TEST(QuantiseWeights, ScalesOfDoubleQuantisationAreTheNearestOf256Values) {
  const QuantisedShape shape{WeightFormat::kNf4Double, 2, 301, 129};  // 607 blocks, so the last 256 are not complete
  const QuantisedShape simple{WeightFormat::kNf4, 2, 301, 129};
  const Values values(DType::kBFloat16, random_values(2 * shape.num_elements(), 3));
  const std::vector<std::byte> bytes = quantised(weight_kernels(), shape, values);
  const std::vector<std::byte> simple_bytes = quantised(weight_kernels(), simple, values);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 2 * shape.code_bytes(), simple_bytes.begin()));
  for (std::int64_t matrix = 0; matrix < 2; ++matrix) {
    const QuantisedMatrix m = matrix_of({shape, bytes.data()}, matrix);
    const auto* scales = static_cast<const float*>(matrix_of({simple, simple_bytes.data()}, matrix).scales);
    double sum = 0;
    for (std::int64_t i = 0; i < shape.num_scales(); ++i) sum += double{scales[i]};
    ASSERT_EQ(*m.offset, static_cast<float>(sum / static_cast<double>(shape.num_scales())));
    for (std::int64_t i = 0; i < shape.num_scales(); ++i) {
      const float nested = m.nested_scales[i / 256], x = (scales[i] - *m.offset) / nested;
      const float found = kNestedMap.at[static_cast<const std::uint8_t*>(m.scales)[i]];
      for (const float other : kNestedMap.at) ASSERT_LE(std::abs(found - x), std::abs(other - x) * (1 + 1e-5F)) << i;
    }
  }
}

// Returns the code of the nearest of the values of codes 0, 1, ..., largest; the even code in a tie.
int nearest_even(double size, int largest, const std::function<double(int)>& value) {
  int best = 0;
  for (int code = 1; code <= largest; ++code) {
    const double difference = std::abs(value(code) - size) - std::abs(value(best) - size);
    if (difference < 0 || (difference == 0 && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(QuantiseWeights, Mxfp4TakesTheSharedExponentAndTheNearestValues) {
  for (const QuantisedShape& shape : border_shapes(WeightFormat::kMxfp4)) {
    for (const float factor : {1.0F, 1e30F, 1e-30F, 1e-37F, 1e-39F, 0.0F}) {
      std::vector<float> wanted = random_values(shape.matrices * shape.num_elements(), 4);
      for (float& value : wanted) value *= factor;
      const Values values(DType::kFloat32, wanted);
      const std::vector<std::byte> bytes = quantised(weight_kernels(), shape, values);
      for_each_matrix(shape, bytes, values, [&](const QuantisedMatrix& m, const float* x) {
        for (std::int64_t i = 0; i < shape.num_elements(); ++i) {
          const float largest = largest_of(x, i / 32 * 32, i / 32 * 32 + 32);
          const int exponent = largest == 0 ? -127 : std::max(std::ilogb(largest) - 2, -127);
          ASSERT_EQ(static_cast<const std::uint8_t*>(m.scales)[i / 32], exponent + 127);
          const int code = nearest_even(std::ldexp(std::abs(double{x[i]}), -exponent), 7,
                                        [](int each) { return static_cast<double>(kMxfp4Codes.at[each]); });
          ASSERT_EQ(code_of(m, i), code + (std::signbit(x[i]) ? 8 : 0)) << text_of(shape) << " " << i << ": " << x[i];
        }
      });
    }
  }
}

TEST(QuantiseWeights, Fp8DividesByTheScaleAndTakesTheNearestValues) {
  const auto e4m3 = [](int code) { return code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10); };
  for (const WeightFormat format : {WeightFormat::kFp8Blocks, WeightFormat::kFp8Tensor}) {
    for (const QuantisedShape& shape : border_shapes(format)) {
      const std::int64_t side = format == WeightFormat::kFp8Blocks ? 128 : std::max(shape.rows, shape.columns);
      const Values values(DType::kFloat32, random_values(shape.matrices * shape.num_elements(), 5));
      const std::vector<std::byte> bytes = quantised(weight_kernels(), shape, values);
      for_each_matrix(shape, bytes, values, [&](const QuantisedMatrix& m, const float* x) {
        const std::int64_t blocks_of_row = (shape.columns + side - 1) / side;
        std::vector<float> largest(static_cast<std::size_t>(shape.num_scales()));
        const auto block_of = [&](std::int64_t i) {
          return static_cast<std::size_t>(i / shape.columns / side * blocks_of_row + i % shape.columns / side);
        };
        for (std::int64_t i = 0; i < shape.num_elements(); ++i) {
          largest[block_of(i)] = std::max(largest[block_of(i)], std::abs(x[i]));
        }
        for (std::int64_t i = 0; i < shape.num_elements(); ++i) {
          const float scale = static_cast<const float*>(m.scales)[block_of(i)];
          ASSERT_EQ(scale, largest[block_of(i)] == 0 ? 1 : largest[block_of(i)] / 448);
          const int code = nearest_even(double{std::abs(x[i]) / scale}, 0x7e, e4m3);
          ASSERT_EQ(code_of(m, i), code + (std::signbit(x[i]) ? 0x80 : 0))
              << text_of(shape) << " " << i << ": " << x[i];
        }
      });
    }
  }
}

TEST(QuantiseWeights, AValueThatIsNotFiniteIsReportedWhereverItIs) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  for (const WeightFormat format : kWeightFormats) {
    const QuantisedShape shape{format, 1, 3, 160};
    std::vector<std::byte> bytes(QuantisedLayout(shape).num_bytes);
    for (const DType dtype : kElementTypes) {
      for (const float bad : {kInfinite, -kInfinite, std::numeric_limits<float>::quiet_NaN()}) {
        for (std::size_t i = 0; i < 480; ++i) {
          std::vector<float> wanted(480, 0.5F);
          wanted[i] = bad;
          const Values values(dtype, wanted);
          for (const WeightKernels* table : usable_weight_kernels()) {
            ASSERT_FALSE(quantise_weights(*table, dtype, values.data(), shape, 0, bytes.data()))
                << text_of(shape) << " " << bad << " at " << i;
          }
        }
      }
    }
  }
}

TEST(QuantiseWeights, ZerosStayZeros) {
  for (const WeightFormat format : kWeightFormats) {
    const QuantisedShape shape{format, 2, 5, 32};
    const Values zeros(DType::kFloat32, std::vector<float>(320));
    const Values back = expanded(shape, quantised(weight_kernels(), shape, zeros), DType::kFloat32);
    EXPECT_EQ(back.floats, zeros.floats) << text_of(shape);
  }
}

// The expanded values of 16-bit weights have the same largest magnitudes as the weights, up to rounding, and are
// nearest to their own codes. In double quantisation this is true of the
// codes only: the rounded scales have another mean.
TEST(QuantiseWeights, ExpandedWeightsQuantiseToTheSameBytes) {
  for (const WeightFormat format : kWeightFormats) {
    for (const QuantisedShape& shape : border_shapes(format)) {
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        const Values values(dtype, random_values(shape.matrices * shape.num_elements(), 6));
        const std::vector<std::byte> bytes = quantised(weight_kernels(), shape, values);
        std::vector<std::byte> again = quantised(weight_kernels(), shape, expanded(shape, bytes, dtype));
        if (format == WeightFormat::kNf4Double) {
          const auto codes = static_cast<std::ptrdiff_t>(shape.matrices * shape.code_bytes());
          std::copy(bytes.begin() + codes, bytes.end(), again.begin() + codes);
        }
        ASSERT_EQ(again, bytes) << text_of(shape);
      }
    }
  }
}

TEST(QuantiseWeights, ErrorsHaveTheSizeThatTheFormatsAllow) {
  const std::map<WeightFormat, double> kShares = {{WeightFormat::kNf4, 0.10},
                                                  {WeightFormat::kNf4Double, 0.10},
                                                  {WeightFormat::kMxfp4, 0.15},
                                                  {WeightFormat::kFp8Blocks, 0.03},
                                                  {WeightFormat::kFp8Tensor, 0.03}};
  std::mt19937 generator(7);
  NormalFloats normal(0, 0.02F);
  std::vector<float> wanted(256 * 512);
  for (float& value : wanted) value = normal(generator);
  const Values values(DType::kFloat32, wanted);
  for (const auto& [format, share] : kShares) {
    const QuantisedShape shape{format, 1, 256, 512};
    const Values back = expanded(shape, quantised(weight_kernels(), shape, values), DType::kFloat32);
    double errors = 0, squares = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      errors += std::pow(double{back.floats[i]} - double{wanted[i]}, 2);
      squares += std::pow(double{wanted[i]}, 2);
    }
    EXPECT_LT(std::sqrt(errors / squares), share) << text_of(shape);
    RecordProperty(text_of(shape), std::to_string(std::sqrt(errors / squares)));
  }
}

}  // namespace
}  // namespace rp::models
