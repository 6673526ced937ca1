#include "kernels/cpu/layer_kernels.h"
#include "tests/common/random_floats.h"

#include <gtest/gtest.h>

#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace rp::models {
namespace {

// Row lengths around multiples of a vector's width.
constexpr std::int64_t kLengths[] = {1, 2, 15, 16, 17, 31, 33, 48, 100};

std::vector<float> random_floats(std::size_t count, float scale = 1) {
  static std::mt19937 generator(7);
  NormalFloats normal(0, scale);
  std::vector<float> result(count);
  for (float& value : result) value = normal(generator);
  return result;
}

std::vector<std::uint16_t> as_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> result;
  for (const float value : values) {
    result.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
  }
  return result;
}

// Expects that `run(table)` leaves the same bytes in `result` for every table.
template <typename T, typename Run>
void expect_same_on_all_sets(std::vector<T>& result, const Run& run) {
  const std::vector<T> before = result;
  std::vector<T> first;
  for (const LayerKernels* table : usable_layer_kernels()) {
    result = before;
    run(*table);
    if (first.empty()) first = result;
    EXPECT_EQ(std::memcmp(first.data(), result.data(), first.size() * sizeof(T)), 0) << table->name;
  }
}

TEST(Kernels, RmsNormOfARowHasUnitMeanSquare) {
  for (const std::int64_t columns : kLengths) {
    const std::vector<float> x = random_floats(static_cast<std::size_t>(3 * columns), 4);
    const std::vector<float> weight(static_cast<std::size_t>(columns), 2.0F);
    std::vector<float> y(x.size()), rstd(3);
    expect_same_on_all_sets(y, [&](const LayerKernels& table) {
      table.rms_norm(DType::kFloat32, {x.data(), weight.data(), y.data(), rstd.data(), columns, 0.0F}, 0, 3);
    });
    for (std::int64_t row = 0; row < 3; ++row) {
      double squares = 0;
      for (std::int64_t i = 0; i < columns; ++i) squares += std::pow(y[row * columns + i], 2);
      EXPECT_NEAR(squares / static_cast<double>(columns), 4.0, 1e-5) << columns;
    }
  }
}

// Rotates the pairs (x[i], 0) of one head by (cosine[i], 0), which computes fp16(x * cosine).
std::vector<std::uint16_t> products_in_fp16(const std::vector<std::uint16_t>& x, const std::vector<float>& cosine) {
  std::vector<std::uint16_t> pairs = x, result(2 * x.size());
  pairs.resize(2 * x.size());
  const std::vector<float> sine(x.size());
  const auto size = static_cast<std::int64_t>(pairs.size());
  expect_same_on_all_sets(result, [&](const LayerKernels& table) {
    table.rotate(DType::kFloat16, {pairs.data(), result.data(), cosine.data(), sine.data(), 1, 1, size, size}, 0, 1);
  });
  result.resize(x.size());
  return result;
}

TEST(Kernels, EveryFp16ValueIsReadAndWrittenUnchanged) {
  std::vector<std::uint16_t> values;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00U) != 0x7c00U || (bits & 0x3ffU) == 0) values.push_back(static_cast<std::uint16_t>(bits));
  }
  EXPECT_EQ(products_in_fp16(values, std::vector<float>(values.size(), 1.0F)), values);
  // NaNs become quiet and keep their other bits.
  EXPECT_EQ(products_in_fp16({0x7c01, 0xfdff, 0x7fff}, {1, 1, 1}),
            (std::vector<std::uint16_t>{0x7e01, 0xffff, 0x7fff}));
}

TEST(Kernels, FloatsAreRoundedToFp16ToNearestWithTiesToEven) {
  std::vector<float> floats;
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    // Halfway between two neighbours, and the nearest fp32 on each side.
    const c10::Half low(static_cast<std::uint16_t>(bits), c10::Half::from_bits());
    const c10::Half high(static_cast<std::uint16_t>(bits + 1), c10::Half::from_bits());
    const float next = bits == 0x7bff ? 65536.0F : static_cast<float>(high);
    const float middle = (static_cast<float>(low) + next) / 2;
    for (const float value : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 1e6F)}) {
      floats.push_back(value);
      floats.push_back(-value);
    }
  }
  for (const float value : {65536.0F, 1e30F, 1e-30F, 1e-45F, INFINITY, -INFINITY}) floats.push_back(value);
  const std::vector<std::uint16_t> rounded =
      products_in_fp16(std::vector<std::uint16_t>(floats.size(), 0x3c00), floats);
  for (std::size_t i = 0; i < floats.size(); ++i) ASSERT_EQ(rounded[i], c10::Half(floats[i]).x) << floats[i];
}

TEST(Kernels, EveryInstructionSetGivesTheSameBitsInEveryFormat) {
  for (const std::int64_t n : kLengths) {
    const auto count = static_cast<std::size_t>(n);
    const std::vector<float> a = random_floats(count, 3), b = random_floats(count), c = random_floats(count);
    const std::vector<std::uint16_t> a16 = as_bf16(a), b16 = as_bf16(b), c16 = as_bf16(c);
    std::vector<float> y(3 * count);
    expect_same_on_all_sets(y, [&](const LayerKernels& table) {
      table.glu(DType::kFloat32, {a.data(), b.data(), y.data()}, 0, n);
      table.glu_grad(DType::kFloat32, {c.data(), a.data(), b.data(), y.data() + n, y.data() + 2 * n}, 0, n);
    });
    std::vector<std::uint16_t> y16(3 * count);
    expect_same_on_all_sets(y16, [&](const LayerKernels& table) {
      table.glu(DType::kBFloat16, {a16.data(), b16.data(), y16.data()}, 0, n);
      table.glu_grad(DType::kBFloat16, {c16.data(), a16.data(), b16.data(), y16.data() + n, y16.data() + 2 * n}, 0, n);
    });
    // Read as fp16, the same bits are different numbers, of any size.
    expect_same_on_all_sets(y16, [&](const LayerKernels& table) {
      table.glu(DType::kFloat16, {a16.data(), b16.data(), y16.data()}, 0, n);
      table.glu_grad(DType::kFloat16, {c16.data(), a16.data(), b16.data(), y16.data() + n, y16.data() + 2 * n}, 0, n);
    });
    std::vector<float> sums(count);
    expect_same_on_all_sets(sums, [&](const LayerKernels& table) {
      sums = a;
      table.add(DType::kBFloat16, {b16.data(), sums.data()}, 0, n);
      table.add(DType::kFloat16, {c16.data(), sums.data()}, 0, n);
      table.add(DType::kFloat32, {c.data(), sums.data()}, 0, n);
    });
    std::vector<float> result(2 * count);
    const float rstd = 0.7F;
    expect_same_on_all_sets(result, [&](const LayerKernels& table) {
      RmsNormGradRows call{c.data(), a.data(), b.data(), &rstd, result.data(), result.data() + n, n};
      table.rms_norm_grad(DType::kFloat32, call, 0, 1);
    });
    const std::vector<float> with_weight(result.begin(), result.begin() + n);
    std::vector<float> frozen(count);
    layer_kernels().rms_norm_grad(DType::kFloat32, {c.data(), a.data(), b.data(), &rstd, frozen.data(), nullptr, n}, 0,
                                  1);
    EXPECT_EQ(frozen, with_weight) << "leaving out the weight's gradient changed the input's gradient";
  }
}

TEST(Kernels, GluAgreesWithDoublePrecisionOverTheWholeRangeOfFloats) {
  std::vector<float> gate, up;
  for (float x = -120; x < 120; x += 0.01F) gate.push_back(x);
  up.assign(gate.size(), 1.0F);
  std::vector<float> y(gate.size());
  layer_kernels().glu(DType::kFloat32, {gate.data(), up.data(), y.data()}, 0, static_cast<std::int64_t>(gate.size()));
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double expected = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i])));
    EXPECT_NEAR(y[i], expected, std::abs(expected) * 1e-6 + 1e-35) << gate[i];
  }
}

TEST(Kernels, CrossEntropyAgreesWithDoublePrecisionAndItsGradientSumsToZero) {
  for (const std::int64_t columns : kLengths) {
    const auto count = static_cast<std::size_t>(columns);
    const std::vector<float> logits = random_floats(count, 20);
    const std::int64_t label = columns / 2;
    double total = 0;
    for (const float x : logits) total += std::exp(static_cast<double>(x));
    const double expected = std::log(total) - logits[label];
    std::vector<float> gradient = logits;
    float loss = 0;
    expect_same_on_all_sets(gradient, [&](const LayerKernels& table) {
      table.cross_entropy(DType::kFloat32, {gradient.data(), &label, &loss, columns, 0.5F, true}, 0, 1);
    });
    EXPECT_NEAR(loss, expected, 1e-5 * std::max(1.0, expected));
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double one = static_cast<std::int64_t>(i) == label ? 1 : 0;
      EXPECT_NEAR(gradient[i], 0.5 * (std::exp(logits[i]) / total - one), 1e-6);
      sum += gradient[i];
    }
    EXPECT_NEAR(sum, 0, 1e-6);
  }
}

TEST(Kernels, ZLossIsPartOfTheCrossEntropysGradient) {
  for (const std::int64_t columns : kLengths) {
    const std::vector<float> logits = random_floats(static_cast<std::size_t>(columns), 5);
    const std::int64_t label = columns / 3;
    double total = 0;
    for (const float x : logits) total += std::exp(static_cast<double>(x));
    std::vector<float> gradient = logits;
    float loss = 0, log_sum = 0;
    expect_same_on_all_sets(gradient, [&](const LayerKernels& table) {
      table.cross_entropy(DType::kFloat32, {gradient.data(), &label, &loss, columns, 0.5F, true, 0.25F, &log_sum}, 0,
                          1);
    });
    EXPECT_NEAR(log_sum, std::log(total), 1e-5 * std::max(1.0, std::abs(std::log(total))));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double one = static_cast<std::int64_t>(i) == label ? 1 : 0;
      EXPECT_NEAR(gradient[i], 0.5 * ((1 + 2 * 0.25 * std::log(total)) * std::exp(logits[i]) / total - one),
                  1e-6 * std::max(1.0, std::abs(std::log(total))));
    }
  }
}

TEST(Kernels, CrossEntropyWithoutGradientLeavesTheLogitsUnchanged) {
  const std::vector<float> logits = random_floats(40);
  std::vector<float> kept = logits;
  const std::int64_t label = 39;
  float loss = 0;
  layer_kernels().cross_entropy(DType::kFloat32, {kept.data(), &label, &loss, 40, 1.0F, false}, 0, 1);
  EXPECT_EQ(kept, logits);
  EXPECT_GT(loss, 0);
}

TEST(KernelsDeathTest, LoopsRefuseADTypeThatTheyDoNotSupport) {
  std::vector<float> x(32, 1.0F), y(32);
  const std::int64_t label = 0;
  float loss = 0;
  constexpr const char* kWhy = "dtype.*does not hold";
  for (const LayerKernels* table : usable_layer_kernels()) {
    EXPECT_DEATH(table->glu(DType::kFloat64, {x.data(), x.data(), y.data()}, 0, 16), kWhy) << table->name;
    EXPECT_DEATH(table->add(DType::kInt16, {x.data(), y.data()}, 0, 16), kWhy) << table->name;
    // The loops that follow a matrix product do not support fp16.
    EXPECT_DEATH(table->cross_entropy(DType::kFloat16, {x.data(), &label, &loss, 20, 1.0F, true}, 0, 1), kWhy)
        << table->name;
    EXPECT_DEATH(table->pack(DType::kFloat16,
                             {.from = x.data(), .stride = 4, .rows = 4, .columns = 4, .to = y.data(), .width = 4}),
                 kWhy);
    EXPECT_DEATH(table->round(DType::kFloat16, x.data(), y.data(), 16), kWhy) << table->name;
    EXPECT_DEATH((void)table->dot(DType::kFloat16, x.data(), x.data(), 16), kWhy) << table->name;
  }
}

TEST(Kernels, NaNsPassThroughEveryKernel) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(20, 1.0F), weight(20, 1.0F), y(20), rstd(1);
  x[17] = nan;
  layer_kernels().rms_norm(DType::kFloat32, {x.data(), weight.data(), y.data(), rstd.data(), 20, 1e-5F}, 0, 1);
  EXPECT_TRUE(std::isnan(y[0]));
  layer_kernels().glu(DType::kFloat32, {x.data(), weight.data(), y.data()}, 0, 20);
  EXPECT_TRUE(std::isnan(y[17]));
  EXPECT_FALSE(std::isnan(y[16]));
  const std::int64_t label = 0;
  float loss = 0;
  layer_kernels().cross_entropy(DType::kFloat32, {x.data(), &label, &loss, 20, 1.0F, true}, 0, 1);
  EXPECT_TRUE(std::isnan(loss));
  // The same in bf16: rounding must not turn a NaN's bits into infinity or zero.
  std::vector<std::uint16_t> half(16, 0x7f81), ones(16, 0x3f80), out(16);
  layer_kernels().glu(DType::kBFloat16, {half.data(), ones.data(), out.data()}, 0, 16);
  EXPECT_EQ(out[3], 0x7fc0);
}

}  // namespace
}  // namespace rp::models
