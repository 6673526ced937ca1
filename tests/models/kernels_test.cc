#include "models/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace rp::models {
namespace {

// Rows of every length around the width of a vector.
constexpr std::int64_t kLengths[] = {1, 2, 15, 16, 17, 31, 33, 48, 100};

std::vector<float> random_floats(std::size_t count, float scale = 1) {
  static std::mt19937 generator(7);
  std::normal_distribution<float> normal(0, scale);
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

// The bytes of `result` after `run(kernels)`, which must be the same for all tables.
template <typename T, typename Run>
void expect_same_on_all_sets(std::vector<T>& result, const Run& run) {
  const std::vector<T> before = result;
  std::vector<T> first;
  for (const Kernels* table : usable_kernels()) {
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
    expect_same_on_all_sets(y, [&](const Kernels& table) {
      table.rms_norm(Element::kFp32, {x.data(), weight.data(), y.data(), rstd.data(), columns, 0.0F}, 0, 3);
    });
    for (std::int64_t row = 0; row < 3; ++row) {
      double squares = 0;
      for (std::int64_t i = 0; i < columns; ++i) squares += std::pow(y[static_cast<std::size_t>(row * columns + i)], 2);
      EXPECT_NEAR(squares / static_cast<double>(columns), 4.0, 1e-5) << columns;
    }
  }
}

TEST(Kernels, EveryInstructionSetGivesTheSameBitsInBothFormats) {
  for (const std::int64_t n : kLengths) {
    const auto count = static_cast<std::size_t>(n);
    const std::vector<float> a = random_floats(count, 3), b = random_floats(count), c = random_floats(count);
    const std::vector<std::uint16_t> a16 = as_bf16(a), b16 = as_bf16(b), c16 = as_bf16(c);
    std::vector<float> y(3 * count);
    expect_same_on_all_sets(y, [&](const Kernels& table) {
      table.swiglu(Element::kFp32, {a.data(), b.data(), y.data()}, 0, n);
      table.swiglu_grad(Element::kFp32, {c.data(), a.data(), b.data(), y.data() + n, y.data() + 2 * n}, 0, n);
    });
    std::vector<std::uint16_t> y16(3 * count);
    expect_same_on_all_sets(y16, [&](const Kernels& table) {
      table.swiglu(Element::kBf16, {a16.data(), b16.data(), y16.data()}, 0, n);
      table.swiglu_grad(Element::kBf16, {c16.data(), a16.data(), b16.data(), y16.data() + n, y16.data() + 2 * n}, 0, n);
    });
    std::vector<float> result(2 * count);
    const float rstd = 0.7F;
    expect_same_on_all_sets(result, [&](const Kernels& table) {
      RmsNormGradRows call{c.data(), a.data(), b.data(), &rstd, result.data(), result.data() + n, n};
      table.rms_norm_grad(Element::kFp32, call, 0, 1);
    });
  }
}

TEST(Kernels, SwigluAgreesWithDoublePrecisionOverTheWholeRangeOfFloats) {
  std::vector<float> gate, up;
  for (float x = -120; x < 120; x += 0.01F) gate.push_back(x);
  up.assign(gate.size(), 1.0F);
  std::vector<float> y(gate.size());
  kernels().swiglu(Element::kFp32, {gate.data(), up.data(), y.data()}, 0, static_cast<std::int64_t>(gate.size()));
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
    const double expected = std::log(total) - logits[static_cast<std::size_t>(label)];
    std::vector<float> gradient = logits;
    float loss = 0;
    expect_same_on_all_sets(gradient, [&](const Kernels& table) {
      table.cross_entropy(Element::kFp32, {gradient.data(), &label, &loss, columns, 0.5F, true}, 0, 1);
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

TEST(Kernels, CrossEntropyWithoutGradientLeavesTheLogits) {
  const std::vector<float> logits = random_floats(40);
  std::vector<float> kept = logits;
  const std::int64_t label = 39;
  float loss = 0;
  kernels().cross_entropy(Element::kFp32, {kept.data(), &label, &loss, 40, 1.0F, false}, 0, 1);
  EXPECT_EQ(kept, logits);
  EXPECT_GT(loss, 0);
}

TEST(Kernels, NotANumberGoesThroughEveryKernelAndStaysOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(20, 1.0F), weight(20, 1.0F), y(20), rstd(1);
  x[17] = nan;
  kernels().rms_norm(Element::kFp32, {x.data(), weight.data(), y.data(), rstd.data(), 20, 1e-5F}, 0, 1);
  EXPECT_TRUE(std::isnan(y[0]));
  kernels().swiglu(Element::kFp32, {x.data(), weight.data(), y.data()}, 0, 20);
  EXPECT_TRUE(std::isnan(y[17]));
  EXPECT_FALSE(std::isnan(y[16]));
  const std::int64_t label = 0;
  float loss = 0;
  kernels().cross_entropy(Element::kFp32, {x.data(), &label, &loss, 20, 1.0F, true}, 0, 1);
  EXPECT_TRUE(std::isnan(loss));
  // In bf16 too: rounding must not turn a NaN's bits into infinity or zero.
  std::vector<std::uint16_t> half(16, 0x7f81), ones(16, 0x3f80), out(16);
  kernels().swiglu(Element::kBf16, {half.data(), ones.data(), out.data()}, 0, 16);
  EXPECT_EQ(out[3], 0x7fc0);
}

}  // namespace
}  // namespace rp::models
