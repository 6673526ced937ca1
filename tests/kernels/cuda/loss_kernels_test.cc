// Compares cross entropy and the end of a backward with the portable table of the CPU, in fp32, and
// with plain loops.
#include "kernels/cuda/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/layer_kernels.h"
#include "tests/kernels/cuda/device_array.h"

namespace rp::cuda {
namespace {

using models::kIgnoredLabel;
using models::kPortableLayerKernels;

class LossKernels : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Formats, LossKernels, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         name_of);

struct Loss {
  std::vector<float> losses, logits;
};

Loss run_cross_entropy(DType dtype, const std::vector<float>& logits, const std::vector<std::int64_t>& labels,
                       double divisor, bool with_gradient = true, std::size_t shift = 0) {
  const auto rows = static_cast<std::int64_t>(labels.size()), columns = static_cast<std::int64_t>(logits.size()) / rows;
  const ElementArray x(dtype, logits, shift);
  const DeviceArray<std::int64_t> l(labels);
  const DeviceArray<float> losses(rows);
  const DeviceArray<double> d(std::vector<double>{divisor});
  kernel_table().cross_entropy(dtype, {x.data(), l.data(), losses.data(), d.data(), columns, with_gradient}, rows,
                               nullptr);
  return {losses.values(), x.values()};
}

Loss reference(std::vector<float> logits, const std::vector<std::int64_t>& labels, float scale) {
  const auto rows = static_cast<std::int64_t>(labels.size()), columns = static_cast<std::int64_t>(logits.size()) / rows;
  std::vector<float> losses(labels.size());
  kPortableLayerKernels.cross_entropy(DType::kFloat32,
                                      {logits.data(), labels.data(), losses.data(), columns, scale, true}, 0, rows);
  return {losses, logits};
}

TEST_P(LossKernels, CrossEntropyAgreesWithTheCpuForAnyVocabulary) {
  const DType dtype = GetParam();
  for (const std::int64_t columns : {1, 2, 7, 8, 100, 4096, 4100, 5003, 32003, 128257, 151936}) {
    for (const std::size_t shift : {0, 1}) {
      std::vector<std::int64_t> labels = {0, columns - 1, columns / 2};
      while (columns < 6000 && labels.size() < 20) labels.push_back(static_cast<std::int64_t>(labels.size()) % columns);
      const std::vector<float> logits = random_values(dtype, static_cast<std::int64_t>(labels.size()) * columns, 1, 6);
      const Loss expected = reference(logits, labels, 0.25F),
                 actual = run_cross_entropy(dtype, logits, labels, 4, true, shift);
      expect_near(DType::kFloat32, actual.losses, expected.losses, 40, 1, "losses of " + std::to_string(columns));
      // At the label, one is subtracted from the probability, times 0.25. The last bit of fp16 is
      // at least 6e-8.
      const float scale = dtype == DType::kFloat32 ? 0.25F : dtype == DType::kFloat16 ? 1e-4F : 1e-6F;
      expect_near(dtype, actual.logits, expected.logits, dtype == DType::kFloat32 ? 40 : 1.1F, scale,
                  "gradient of " + std::to_string(columns));
    }
  }
}

TEST_P(LossKernels, ZLossAgreesWithTheCpuAndLeavesOutUntrainedRows) {
  const std::int64_t rows = 4, columns = 5003;
  const std::vector<std::int64_t> labels = {0, columns - 1, models::kIgnoredLabel, 17};
  const std::vector<float> logits = random_values(GetParam(), rows * columns, 1, 6);
  const ElementArray x(GetParam(), logits);
  const DeviceArray<std::int64_t> l(labels);
  const DeviceArray<float> losses(rows), log_sums(rows);
  const DeviceArray<double> d(std::vector<double>{4});
  kernel_table().cross_entropy(
      GetParam(), {x.data(), l.data(), losses.data(), d.data(), columns, true, 0.25F, log_sums.data()}, rows, nullptr);
  std::vector<float> expected = logits, expected_losses(4), expected_sums(4, 0.0F);
  for (const std::int64_t row : {0, 1, 3}) {
    const std::int64_t first = row * columns;
    kPortableLayerKernels.cross_entropy(DType::kFloat32,
                                        {expected.data() + first, labels.data() + row, expected_losses.data() + row,
                                         columns, 0.25F, true, 0.25F, expected_sums.data() + row},
                                        0, 1);
  }
  std::fill_n(expected.begin() + 2 * columns, columns, 0.0F);
  expect_near(DType::kFloat32, losses.values(), expected_losses, 40, 1, "losses");
  expect_near(DType::kFloat32, log_sums.values(), expected_sums, 40, 1, "logarithms of sums");
  const float scale = GetParam() == DType::kFloat32 ? 0.25F : GetParam() == DType::kFloat16 ? 1e-4F : 1e-6F;
  expect_near(GetParam(), x.values(), expected, GetParam() == DType::kFloat32 ? 80 : 1.1F, scale, "gradient");
}

TEST_P(LossKernels, CrossEntropyWithoutGradientLeavesTheLogitsUnchanged) {
  const std::vector<float> logits = random_values(GetParam(), 3 * 1000, 1);
  const Loss with = run_cross_entropy(GetParam(), logits, {1, 2, 3}, 1),
             without = run_cross_entropy(GetParam(), logits, {1, 2, 3}, 1, false);
  EXPECT_EQ(without.logits, logits);
  EXPECT_EQ(without.losses, with.losses);
}

TEST_P(LossKernels, UntrainedAndWrongLabelsHaveNoGradientAndSayWhichTheyAre) {
  const DType dtype = GetParam();
  const std::int64_t columns = 1003;
  const std::vector<float> logits = random_values(dtype, 6 * columns, 1);
  const std::vector<std::int64_t> labels = {5, kIgnoredLabel, columns, -1, std::numeric_limits<std::int64_t>::min(), 6};
  const Loss actual = run_cross_entropy(dtype, logits, labels, 1);
  EXPECT_GT(actual.losses[0], 0);
  EXPECT_EQ(actual.losses[1], 0);
  for (const std::size_t i : {2, 3, 4}) EXPECT_TRUE(std::isnan(actual.losses[i])) << i;
  EXPECT_GT(actual.losses[5], 0);
  for (std::size_t i = 0; i < actual.logits.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(columns);
    if (row >= 1 && row <= 4) {
      ASSERT_EQ(actual.logits[i], 0) << i;
    }
  }
  EXPECT_LT(actual.logits[5], 0);
}

TEST_P(LossKernels, DivisorThatIsNotPositiveGivesNoGradient) {
  const std::vector<float> logits = random_values(GetParam(), 200, 1);
  for (const double divisor : {0.0, -3.0, static_cast<double>(NAN)}) {
    for (const float value : run_cross_entropy(GetParam(), logits, {1, 2}, divisor).logits) ASSERT_EQ(value, 0);
  }
}

// Logits of -infinity rule out tokens; whole threads may see nothing else.
TEST_P(LossKernels, RuledOutTokensHaveNoProbability) {
  const DType dtype = GetParam();
  const std::int64_t columns = 20000;
  std::vector<float> logits(static_cast<std::size_t>(columns), -INFINITY);
  logits[17000] = 1;
  logits[17001] = 1;
  const Loss actual = run_cross_entropy(dtype, logits, {17000}, 1);
  EXPECT_NEAR(actual.losses[0], std::log(2.0), 1e-6);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    ASSERT_EQ(actual.logits[i], i == 17000 ? -0.5F : i == 17001 ? 0.5F : 0.0F) << i;
  }
}

TEST_P(LossKernels, LargeLogitsNeitherOverflowNorHideNotANumber) {
  const DType dtype = GetParam();
  std::vector<float> logits(9000, -30000.0F);
  logits[100] = 30000;
  const Loss large = run_cross_entropy(dtype, logits, {100}, 1);
  EXPECT_EQ(large.losses[0], 0);
  EXPECT_EQ(large.logits[100], 0);
  for (const float wrong : {NAN, INFINITY}) {
    logits[8500] = wrong;
    EXPECT_TRUE(std::isnan(run_cross_entropy(dtype, logits, {100}, 1).losses[0]));
  }
  EXPECT_TRUE(std::isnan(run_cross_entropy(dtype, std::vector<float>(50, -INFINITY), {1}, 1).losses[0]));
}

TEST_P(LossKernels, CrossEntropyDoesNotDependOnAlignment) {
  const std::vector<float> logits = random_values(GetParam(), 2 * 10000, 1, 4);
  const Loss aligned = run_cross_entropy(GetParam(), logits, {1, 2}, 3);
  const Loss shifted = run_cross_entropy(GetParam(), logits, {1, 2}, 3, true, 3);
  EXPECT_EQ(aligned.losses, shifted.losses);
  EXPECT_EQ(aligned.logits, shifted.logits);
}

class Sums : public KernelTest {};

float sum_of(const std::vector<float>& losses, double divisor) {
  const DeviceArray<float> l(losses), total(1);
  const DeviceArray<double> d(std::vector<double>{divisor});
  kernel_table().sum_losses({l.data(), static_cast<std::int64_t>(losses.size()), d.data(), total.data()}, nullptr);
  return total.values()[0];
}

TEST_F(Sums, OfLossesAreFp64AndDividedOnce) {
  for (const std::int64_t count : {0, 1, 255, 256, 257, 5000}) {
    const std::vector<float> losses = random_values(DType::kFloat32, count, 1);
    double expected = 0;
    for (const float loss : losses) expected += loss;
    EXPECT_FLOAT_EQ(sum_of(losses, 7), static_cast<float>(expected / 7));
  }
  std::vector<float> losses(300, 1.0F);
  losses[0] = 1e8F;  // in fp32 the others would be lost
  EXPECT_EQ(sum_of(losses, 1), static_cast<float>(1e8 + 299));
}

TEST_F(Sums, OfLossesAreNotANumberIfOneIsOrTheDivisorIsNotPositive) {
  std::vector<float> losses(300, 1.0F);
  EXPECT_TRUE(std::isnan(sum_of(losses, 0)));
  EXPECT_TRUE(std::isnan(sum_of(losses, -1)));
  losses[299] = NAN;
  EXPECT_TRUE(std::isnan(sum_of(losses, 1)));
}

TEST_P(LossKernels, ScaleMultipliesAndLeavesMemoryAloneAtOne) {
  const DType dtype = GetParam();
  for (const std::int64_t count : {1, 8, 9, 5000}) {
    const std::vector<float> values = random_values(dtype, count, 1);
    const ElementArray x(dtype, values, count == 9 ? 1 : 0);
    const DeviceArray<float> factor(std::vector<float>{1, -2.5F});
    kernel_table().scale(dtype, {x.data(), count, factor.data()}, nullptr);
    EXPECT_EQ(x.values(), values);
    kernel_table().scale(dtype, {x.data(), count, factor.data() + 1}, nullptr);
    const std::vector<float> scaled = x.values();
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(scaled[i], rounded(dtype, values[i] * -2.5F));
  }
}

struct Rounded {
  std::vector<float> values;
  double squares;
};

Rounded run_round(DType dtype, const std::vector<float>& gradient, std::size_t shift = 0) {
  const auto count = static_cast<std::int64_t>(gradient.size());
  const DeviceArray<float> from(gradient, shift);
  const ElementArray to(dtype, count, shift);
  const DeviceArray<double> partial(models::num_square_sums(count)), squares(1);
  kernel_table().round_gradient(dtype, {from.data(), to.data(), count, partial.data(), squares.data()}, nullptr);
  (void)partial.values();  // checks its guards
  return {to.values(), squares.values()[0]};
}

TEST_P(LossKernels, GradientsAreRoundedToNearestAndTheirSquaresAdded) {
  const DType dtype = GetParam();
  for (const std::int64_t count : {1, 3, 8, 16383, 16384, 16385, 200001}) {
    const std::vector<float> gradient = random_values(DType::kFloat32, count, 1, 0.1F);
    const Rounded actual = run_round(dtype, gradient);
    double squares = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float expected = rounded(dtype, gradient[i]);
      ASSERT_EQ(actual.values[i], expected) << i;
      squares += static_cast<double>(expected) * static_cast<double>(expected);
    }
    EXPECT_NEAR(actual.squares, squares, 1e-6 * squares) << count;
    const Rounded shifted = run_round(dtype, gradient, 1);
    EXPECT_EQ(shifted.values, actual.values);
    EXPECT_EQ(shifted.squares, actual.squares);
  }
}

TEST_P(LossKernels, TiesRoundToEven) {
  const DType dtype = GetParam();
  if (dtype == DType::kFloat32) return;
  const float unit = 2 * half_unit(dtype);
  const Rounded actual = run_round(dtype, {1 + unit / 2, 1 + 3 * unit / 2, 1 + unit / 2 + 1e-6F});
  EXPECT_EQ(actual.values, (std::vector<float>{1, 1 + 2 * unit, 1 + unit}));
}

TEST_P(LossKernels, SquaresOutsideTheRangeOfFp32AreAddedAllTheSame) {
  if (GetParam() == DType::kFloat16) return;  // fp16 has no such values
  for (const float value : {1e-30F, 1e-15F, 1e25F}) {
    const Rounded actual = run_round(GetParam(), std::vector<float>(1000, value));
    const double expected =
        1000.0 * static_cast<double>(rounded(GetParam(), value)) * static_cast<double>(rounded(GetParam(), value));
    EXPECT_NEAR(actual.squares, expected, 1e-6 * expected) << value;
  }
  EXPECT_EQ(run_round(GetParam(), std::vector<float>(1000, -0.0F)).squares, 0);
}

TEST_P(LossKernels, SquaresAreFiniteExactlyIfAllRoundedValuesAre) {
  const DType dtype = GetParam();
  for (const float wrong : {INFINITY, -INFINITY, NAN}) {
    for (const std::size_t place : {0, 5, 16384, 19999}) {
      std::vector<float> gradient(20000, 1e-3F);
      gradient[place] = wrong;
      EXPECT_FALSE(std::isfinite(run_round(dtype, gradient).squares)) << wrong << " at " << place;
    }
  }
  // The largest value of each format, and values that round to infinity.
  const float largest = dtype == DType::kFloat16 ? 65504.0F : dtype == DType::kBFloat16 ? 0x1.fep127F : 0x1.fffffep127F;
  EXPECT_TRUE(std::isfinite(run_round(dtype, std::vector<float>(20000, largest)).squares));
  if (dtype == DType::kFloat16) {
    EXPECT_FALSE(std::isfinite(run_round(dtype, {65520.0F}).squares));
  }
}

#ifndef RP_EMULATED_KERNELS
// Indices above 2^31; needs 6 GiB.
TEST_F(Sums, ArraysOfMoreThanTwoToThe31ElementsAreDoneToTheirEnd) {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  if (free < (std::size_t{6} << 30))
    GTEST_SKIP() << "needs 6 GiB of GPU memory, and " << (free >> 20) << " MiB are free";
  const std::int64_t rows = 20001, columns = 131073,
                     count = rows * columns;  // 2.6e9 elements, rows that are not aligned
  const DeviceMemory logits(static_cast<std::size_t>(count) * 2);
  check(cudaMemset(logits.data(), 0, static_cast<std::size_t>(count) * 2));
  const DeviceArray<std::int64_t> labels(std::vector<std::int64_t>(static_cast<std::size_t>(rows), columns - 1));
  const DeviceArray<float> losses(rows), factor(std::vector<float>{2});
  kernel_table().cross_entropy(DType::kBFloat16, {logits.data(), labels.data(), losses.data(), nullptr, columns, true},
                               rows, nullptr);
  kernel_table().scale(DType::kBFloat16, {logits.data(), count, factor.data()}, nullptr);
  for (const float loss : losses.values()) ASSERT_NEAR(loss, std::log(131073.0), 1e-4);
  std::uint16_t last[2] = {};
  check(cudaMemcpy(last, logits.data() + (count - 2) * 2, sizeof(last), cudaMemcpyDeviceToHost));
  EXPECT_EQ(last[1], bf16_bits(-2.0F));  // 2 * (1 / 131073 - 1), rounded
  EXPECT_EQ(last[0], bf16_bits(2.0F * rounded(DType::kBFloat16, 1.0F / 131073.0F)));
}
#endif

}  // namespace
}  // namespace rp::cuda
