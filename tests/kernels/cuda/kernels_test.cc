// Compares norms, rotary embedding, SwiGLU and token embedding with the portable table of the CPU,
// in fp32.
#include "kernels/cuda/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cpu/layer_kernels.h"
#include "roundpipe/error.h"
#include "tests/kernels/cuda/device_array.h"

namespace rp::cuda {
namespace {

using models::kPortableLayerKernels;
using models::RotateRows;

class Kernels : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Formats, Kernels, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         name_of);

class Rows : public KernelTest {};
class RotaryTables : public KernelTest {};

// Widths around a pack (4 or 8), the packs of a warp and of a block (2048), and the elements that a
// block keeps (8192).
constexpr std::int64_t kColumns[] = {1, 3, 7, 8, 9, 64, 100, 1000, 2048, 2056, 5001, 8192, 8200, 9001};
// For the norm's gradient: widths around the packs of blocks of 128, 256, 512 and 1024 threads.
constexpr std::int64_t kColumnsOfGradients[] = {1,    3,    7,    8,    9,    64,   100,  512,  516,  1000,
                                                1024, 1032, 2048, 2056, 4096, 4104, 5001, 8192, 8200, 9001};

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

struct Norm {
  std::vector<float> y, rstd;
};

Norm run_norm(DType dtype, const std::vector<float>& x, const std::vector<float>& weight, std::int64_t rows,
              std::size_t shift = 0, NormKind kind = NormKind::kRounded) {
  const auto columns = static_cast<std::int64_t>(weight.size());
  const ElementArray in(dtype, x, shift), w(dtype, weight, shift), out(dtype, rows * columns, shift);
  const DeviceArray<float> rstd(rows);
  kernel_table().rms_norm(dtype, {in.data(), w.data(), out.data(), rstd.data(), columns, 1e-5F, kind}, rows, nullptr);
  EXPECT_EQ(bytes_of(in.values()), bytes_of(x)) << "the input was changed";
  return {out.values(), rstd.values()};
}

TEST_P(Kernels, RmsNormAgreesWithTheCpuForAnyNumberOfColumnsAndRows) {
  const DType dtype = GetParam();
  for (const std::int64_t columns : kColumns) {
    for (const std::int64_t rows : {0, 1, 3, 9}) {
      const std::vector<float> x = random_values(dtype, rows * columns, 1, 3), w = random_values(dtype, columns, 2);
      std::vector<float> y(x.size()), rstd(rows);
      kPortableLayerKernels.rms_norm(DType::kFloat32, {x.data(), w.data(), y.data(), rstd.data(), columns, 1e-5F}, 0,
                                     rows);
      const Norm norm = run_norm(dtype, x, w, rows);
      expect_near(dtype, norm.y, y, dtype == DType::kFloat32 ? 20 : 2.1F, 0.01F, "y of " + std::to_string(columns));
      expect_near(DType::kFloat32, norm.rstd, rstd, 20, 0, "rstd");
    }
  }
}

TEST_P(Kernels, AddRmsNormHasTheBitsOfTheSumAndOfItsNorm) {
  const DType dtype = GetParam();
  for (const std::int64_t columns : {1, 9, 64, 2056, 5001}) {
    const std::int64_t rows = 9;
    const std::vector<float> x = random_values(dtype, rows * columns, 1),
                             residual = random_values(dtype, rows * columns, 2, 5);
    const std::vector<float> weight = random_values(dtype, columns, 3);
    std::vector<float> sum;
    for (std::size_t i = 0; i < x.size(); ++i) sum.push_back(rounded(dtype, x[i] + residual[i]));
    const ElementArray a(dtype, x), b(dtype, residual), w(dtype, weight), total(dtype, rows * columns),
        y(dtype, rows * columns);
    const DeviceArray<float> rstd(rows);
    kernel_table().add_rms_norm(
        dtype, {a.data(), b.data(), w.data(), total.data(), y.data(), rstd.data(), columns, 1e-5F}, rows, nullptr);
    EXPECT_EQ(bytes_of(total.values()), bytes_of(sum));
    const Norm norm = run_norm(dtype, sum, weight, rows);
    EXPECT_EQ(bytes_of(y.values()), bytes_of(norm.y));
    EXPECT_EQ(bytes_of(rstd.values()), bytes_of(norm.rstd));
    // In place, as the table's documentation allows.
    kernel_table().add_rms_norm(dtype, {a.data(), b.data(), w.data(), b.data(), y.data(), rstd.data(), columns, 1e-5F},
                                rows, nullptr);
    EXPECT_EQ(bytes_of(b.values()), bytes_of(sum));
    EXPECT_EQ(bytes_of(y.values()), bytes_of(norm.y));
  }
}

struct NormGrad {
  std::vector<float> grad_x, grad_weight;
};

NormGrad run_norm_grad(DType dtype, const std::vector<float>& grad_y, const std::vector<float>& x,
                       const std::vector<float>& weight, const std::vector<float>& rstd,
                       const std::vector<float>* grad_sum, std::size_t shift = 0, NormKind kind = NormKind::kRounded) {
  const auto columns = static_cast<std::int64_t>(weight.size()), rows = static_cast<std::int64_t>(rstd.size());
  const ElementArray g(dtype, grad_y, shift), in(dtype, x, shift), w(dtype, weight, shift);
  const ElementArray add(dtype, grad_sum == nullptr ? std::vector<float>() : *grad_sum, shift);
  const ElementArray grad_x(dtype, rows * columns, shift);
  const DeviceArray<float> r(rstd), partial(models::num_row_sums(rows) * columns);
  const DeviceArray<float> grad_weight(std::vector<float>(weight.size(), 77.0F));  // overwritten
  kernel_table().rms_norm_grad(dtype,
                               {g.data(), grad_sum == nullptr ? nullptr : add.data(), in.data(), w.data(), r.data(),
                                grad_x.data(), grad_weight.data(), partial.data(), columns, kind},
                               rows, nullptr);
  (void)partial.values();  // checks its guards
  return {grad_x.values(), grad_weight.values()};
}

TEST_P(Kernels, RmsNormGradAgreesWithTheCpuAndAddsTheSumsGradient) {
  const DType dtype = GetParam();
  for (const std::int64_t columns : kColumnsOfGradients) {
    for (const std::int64_t rows : {0, 1, 3, 9, 50, 120}) {
      if ((rows > 9 && columns != 7 && columns != 64) || (rows > 1 && columns > 1000 && columns != 8200)) continue;
      const std::int64_t count = rows * columns;
      const std::vector<float> grad_y = random_values(dtype, count, 1), x = random_values(dtype, count, 2, 3);
      const std::vector<float> weight = random_values(dtype, columns, 3), grad_sum = random_values(dtype, count, 4);
      std::vector<float> y(x.size()), rstd(rows), grad_x(x.size()), grad_weight(weight.size());
      kPortableLayerKernels.rms_norm(DType::kFloat32, {x.data(), weight.data(), y.data(), rstd.data(), columns, 1e-5F},
                                     0, rows);
      kPortableLayerKernels.rms_norm_grad(
          DType::kFloat32,
          {grad_y.data(), x.data(), weight.data(), rstd.data(), grad_x.data(), grad_weight.data(), columns}, 0, rows);
      const std::string what = std::to_string(rows) + " x " + std::to_string(columns);
      const bool is_fp32 = dtype == DType::kFloat32;
      // A row of one column is normalised to +-1. The exact gradient is 0, so the result is the
      // rounding error of values up to 1 / rstd.
      const float scale = columns == 1 ? 30.0F : 0.1F;
      const NormGrad plain = run_norm_grad(dtype, grad_y, x, weight, rstd, nullptr);
      expect_near(dtype, plain.grad_x, grad_x, is_fp32 ? 50 : 1.1F, scale, "grad_x of " + what);
      // A sum of `rows` terms, each with a rounded factor.
      expect_near(dtype, plain.grad_weight, grad_weight, is_fp32 ? 50 : 3, std::sqrt(static_cast<float>(rows)),
                  "grad_weight of " + what);
      const NormGrad added = run_norm_grad(dtype, grad_y, x, weight, rstd, &grad_sum);
      for (std::size_t i = 0; i < grad_x.size(); ++i) grad_x[i] += grad_sum[i];
      expect_near(dtype, added.grad_x, grad_x, is_fp32 ? 50 : 1.1F, scale, "grad_x plus the sum's gradient of " + what);
      EXPECT_EQ(bytes_of(added.grad_weight), bytes_of(plain.grad_weight));
    }
  }
}

TEST_P(Kernels, OtherKindsOfNormsAgreeWithTheCpu) {
  const DType dtype = GetParam();
  const bool is_fp32 = dtype == DType::kFloat32;
  for (const NormKind kind : {NormKind::kUnrounded, NormKind::kOffset}) {
    for (const std::int64_t columns : {9, 64, 2056}) {
      const std::int64_t rows = 9;
      const std::vector<float> x = random_values(dtype, rows * columns, 1, 3),
                               weight = random_values(dtype, columns, 2);
      const std::vector<float> grad_y = random_values(dtype, rows * columns, 3);
      std::vector<float> y(x.size()), rstd(rows), grad_x(x.size()), grad_weight(weight.size());
      kPortableLayerKernels.rms_norm(DType::kFloat32,
                                     {x.data(), weight.data(), y.data(), rstd.data(), columns, 1e-5F, kind}, 0, rows);
      kPortableLayerKernels.rms_norm_grad(
          DType::kFloat32,
          {grad_y.data(), x.data(), weight.data(), rstd.data(), grad_x.data(), grad_weight.data(), columns, kind}, 0,
          rows);
      for (const std::size_t shift : {0, 1}) {
        const Norm norm = run_norm(dtype, x, weight, rows, shift, kind);
        expect_near(dtype, norm.y, y, is_fp32 ? 20 : 1.1F, 0.01F, "y");
        const NormGrad grad = run_norm_grad(dtype, grad_y, x, weight, rstd, nullptr, shift, kind);
        expect_near(dtype, grad.grad_x, grad_x, is_fp32 ? 50 : 1.1F, 0.1F, "grad_x");
        expect_near(DType::kFloat32, grad.grad_weight, grad_weight, 50, std::sqrt(static_cast<float>(rows)),
                    "grad_weight, whose factors are not rounded");
      }
    }
  }
}

// The terms of the weight's gradient have a rounded factor. Adding them in fp64 leaves only
// differences due to the order of the sum.
TEST_P(Kernels, RmsNormGradAddsTheRowsOfAllPartialSumsToTheWeightsGradient) {
  const DType dtype = GetParam();
  struct Shape {
    std::int64_t rows, columns;
  };
  // Partial sums of 2, 3, 6 and 16 rows, with fewer rows in the last partial sum; and rows that
  // occupy three blocks.
  std::vector<Shape> shapes = {{681, 9}, {1021, 3}, {2048, 4}, {3, 16392}};
  if (dtype == DType::kBFloat16) shapes.push_back({5460, 8});
  for (const auto& [rows, columns] : shapes) {
    const std::int64_t count = rows * columns;
    const std::vector<float> grad_y = random_values(dtype, count, 1), x = random_values(dtype, count, 2, 3);
    const std::vector<float> weight = random_values(dtype, columns, 3), grad_sum = random_values(dtype, count, 4);
    const std::vector<float> rstd = random_values(DType::kFloat32, rows, 5);
    std::vector<float> grad_x(x.size()), grad_weight(weight.size());
    kPortableLayerKernels.rms_norm_grad(
        DType::kFloat32,
        {grad_y.data(), x.data(), weight.data(), rstd.data(), grad_x.data(), grad_weight.data(), columns}, 0, rows);
    std::vector<double> sums(weight.size()), sizes(weight.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i), column = static_cast<std::size_t>(i % columns);
      const double term = grad_y[at] * rounded(dtype, x[at] * rstd[i / columns]);
      sums[column] += term;
      sizes[column] += std::abs(term);
      grad_x[at] += grad_sum[at];
    }
    const std::string what = std::to_string(rows) + " x " + std::to_string(columns);
    const NormGrad result = run_norm_grad(dtype, grad_y, x, weight, rstd, &grad_sum);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      ASSERT_NEAR(result.grad_weight[i], sums[i], 1e-6 * sizes[i]) << what << ", column " << i;
    }
    expect_near(dtype, result.grad_x, grad_x, dtype == DType::kFloat32 ? 100 : 1.1F, 1, "grad_x of " + what);
  }
}

// 340 blocks are two for each of 170 multiprocessors. The scratch memory has a row for each block.
TEST_F(Rows, AreSummedByAtLeast340BlocksFor2048Tokens) {
  EXPECT_EQ(models::num_row_sums(0), 0);
  for (std::int64_t rows = 1; rows <= 20000; ++rows) {
    const std::int64_t of_each = models::rows_per_sum(rows), num_sums = models::num_row_sums(rows);
    ASSERT_GE(num_sums, std::min<std::int64_t>(rows, 340)) << rows;
    ASSERT_LE(of_each, 16) << rows;
    ASSERT_TRUE((num_sums - 1) * of_each < rows && rows <= num_sums * of_each) << rows;
  }
  EXPECT_GE(models::num_row_sums(2048), 340);
  EXPECT_EQ(models::rows_per_sum(16384), 16);
}

TEST_P(Kernels, ResultsDoNotDependOnAlignment) {
  const DType dtype = GetParam();
  struct Case {
    std::int64_t rows, columns;
    std::vector<std::size_t> shifts;
  };
  for (const auto& [rows, columns, shifts] :
       {Case{20, 520, {1, 2, 5}}, Case{690, 24, {5}}}) {  // two rows per partial sum
    const std::vector<float> x = random_values(dtype, rows * columns, 1), w = random_values(dtype, columns, 2);
    const std::vector<float> grad = random_values(dtype, rows * columns, 3);
    const Norm aligned = run_norm(dtype, x, w, rows);
    const NormGrad aligned_grad = run_norm_grad(dtype, grad, x, w, aligned.rstd, &x);
    for (const std::size_t shift : shifts) {
      const Norm shifted = run_norm(dtype, x, w, rows, shift);
      EXPECT_EQ(bytes_of(shifted.y), bytes_of(aligned.y));
      EXPECT_EQ(bytes_of(shifted.rstd), bytes_of(aligned.rstd));
      const NormGrad shifted_grad = run_norm_grad(dtype, grad, x, w, aligned.rstd, &x, shift);
      EXPECT_EQ(bytes_of(shifted_grad.grad_x), bytes_of(aligned_grad.grad_x));
      EXPECT_EQ(bytes_of(shifted_grad.grad_weight), bytes_of(aligned_grad.grad_weight));
    }
  }
}

TEST_P(Kernels, RotaryTableIsRoundedCosineAndSine) {
  const DType dtype = GetParam();
  const std::int64_t length = 1000, half = 6;
  const std::vector<float> frequencies = {1.0F, 0.3F, 0.1F, 0.01F, 1e-3F, 1e-5F};
  const DeviceArray<float> f(frequencies), cosine(length * half), sine(length * half);
  kernel_table().rotary_table(dtype, {f.data(), cosine.data(), sine.data(), length, half}, nullptr);
  std::vector<float> expected_cosine, expected_sine;
  for (std::int64_t i = 0; i < length * half; ++i) {
    const float angle = static_cast<float>(i / half) * frequencies[i % half];
    expected_cosine.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
    expected_sine.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
  }
  expect_near(dtype, cosine.values(), expected_cosine, dtype == DType::kFloat32 ? 4 : 1.1F, 0.01F, "cosine");
  expect_near(dtype, sine.values(), expected_sine, dtype == DType::kFloat32 ? 4 : 1.1F, 0.01F, "sine");
  for (const float value : cosine.values()) ASSERT_EQ(value, rounded(dtype, value));
}

TEST_F(RotaryTables, AreMultipliedByTheirFactorBeforeTheyAreRounded) {
  const std::int64_t length = 50, half = 3;
  const DeviceArray<float> f(std::vector<float>{1.0F, 0.1F, 1e-4F}), cosine(length * half), sine(length * half);
  const auto table_of = [&](DType dtype, float factor) {
    kernel_table().rotary_table(dtype, {f.data(), cosine.data(), sine.data(), length, half, factor}, nullptr);
    return std::pair(cosine.values(), sine.values());
  };
  constexpr float kFactor = 1.35F;
  const auto [plain_cosine, plain_sine] = table_of(DType::kFloat32, 1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const auto [cosines, sines] = table_of(dtype, kFactor);
    for (std::size_t i = 0; i < cosines.size(); ++i) {
      ASSERT_EQ(cosines[i], rounded(dtype, plain_cosine[i] * kFactor)) << i;
      ASSERT_EQ(sines[i], rounded(dtype, plain_sine[i] * kFactor)) << i;
    }
  }
}

TEST_P(Kernels, RotationAgreesWithTheCpuInBothDirectionsAndInPlace) {
  const DType dtype = GetParam();
  struct Head {
    std::int64_t size, rotated;
  };
  for (const auto& [size, rotated] : {Head{2, 2},
                                      {6, 6},
                                      {16, 16},
                                      {64, 64},
                                      {80, 80},
                                      {128, 128},  // whole heads
                                      {256, 64},
                                      {64, 16},
                                      {80, 16},
                                      {20, 16},
                                      {7, 2},
                                      {16, 14}}) {
    for (const std::size_t shift : {0, 3}) {
      const std::int64_t sequence = 7, rows = 2 * sequence, heads = size == 128 ? 20 : 3, half = rotated / 2;
      const std::vector<float> x = random_values(dtype, rows * heads * size, 1);
      const std::vector<float> cosine = random_values(DType::kFloat32, sequence * half, 2),
                               sine = random_values(DType::kFloat32, sequence * half, 3);
      const DeviceArray<float> c(cosine, shift), s(sine, shift);
      for (const bool back : {false, true}) {
        std::vector<float> expected(x.size());
        const RotateRows cpu{x.data(), expected.data(), cosine.data(), sine.data(), sequence, heads,
                             size,     rotated,         back};
        kPortableLayerKernels.rotate(DType::kFloat32, cpu, 0, rows);
        const ElementArray in(dtype, x, shift), out(dtype, rows * heads * size, shift);
        const RotateRows gpu{in.data(), out.data(), c.data(), s.data(), sequence, heads, size, rotated, back};
        kernel_table().rotate(dtype, gpu, rows, nullptr);
        // The last bit of fp16 is at least 6e-8; in fp32 the two products may cancel.
        const float scale = dtype == DType::kFloat32 ? 4.0F : dtype == DType::kFloat16 ? 1e-4F : 0.0F;
        expect_near(dtype, out.values(), expected, 1.1F, scale,
                    std::to_string(rotated) + " of " + std::to_string(size));
        RotateRows in_place = gpu;
        in_place.y = in.data();
        kernel_table().rotate(dtype, in_place, rows, nullptr);
        EXPECT_EQ(bytes_of(in.values()), bytes_of(out.values()));
      }
    }
  }
}

TEST_P(Kernels, GluAndItsGradientAgreeWithTheCpu) {
  const DType dtype = GetParam();
  const auto check = [&](Activation activation, std::int64_t count) {
    for (const std::size_t shift : {0, 1}) {
      const std::vector<float> gate = random_values(dtype, count, 1, 4), up = random_values(dtype, count, 2),
                               grad = random_values(dtype, count, 3);
      std::vector<float> y(gate.size()), grad_gate(gate.size()), grad_up(gate.size());
      kPortableLayerKernels.glu(DType::kFloat32, {gate.data(), up.data(), y.data(), activation}, 0, count);
      kPortableLayerKernels.glu_grad(
          DType::kFloat32, {grad.data(), gate.data(), up.data(), grad_gate.data(), grad_up.data(), activation}, 0,
          count);
      const ElementArray g(dtype, gate, shift), u(dtype, up, shift), d(dtype, grad, shift), out(dtype, count, shift);
      kernel_table().glu(dtype, {g.data(), u.data(), out.data(), activation}, count, nullptr);
      const float units = dtype == DType::kFloat32 ? 20 : 1.1F;
      expect_near(dtype, out.values(), y, units, 1e-3F, "y");
      // In place, as the table's documentation allows.
      kernel_table().glu_grad(dtype, {d.data(), g.data(), u.data(), g.data(), u.data(), activation}, count, nullptr);
      // The derivative of the activation has a zero. Near it the result is small, but its error is
      // the error of terms as large as grad * up.
      expect_near(dtype, g.values(), grad_gate, units, dtype == DType::kFloat32 ? 1 : 1e-2F, "grad_gate");
      expect_near(dtype, u.values(), grad_up, units, 1e-3F, "grad_up");
    }
  };
  for (const std::int64_t count : {0, 1, 7, 8, 9, 2047, 20000, 100003}) check(Activation::kSilu, count);
  for (const std::int64_t count : {1, 9, 20000}) {
    check(Activation::kGeluTanh, count);
    check(Activation::kClampedSwish, count);
    check(Activation::kSigmoid, count);
  }
}

TEST_P(Kernels, GluReachesItsLimitForLargeGates) {
  const DType dtype = GetParam();
  const ElementArray gate(dtype, {-200, 200, -30000, 30000, NAN}), up(dtype, std::vector<float>(5, 1.0F)), y(dtype, 5);
  kernel_table().glu(dtype, {gate.data(), up.data(), y.data()}, 5, nullptr);
  const std::vector<float> values = y.values();
  EXPECT_EQ(std::abs(values[0]), 0);
  EXPECT_EQ(values[1], 200);
  EXPECT_EQ(std::abs(values[2]), 0);
  EXPECT_EQ(values[3], rounded(dtype, 30000));
  EXPECT_TRUE(std::isnan(values[4]));
}

TEST_P(Kernels, EmbeddingCopiesRowsAndMarksIdsOutsideTheVocabulary) {
  const DType dtype = GetParam();
  for (const std::int64_t columns : {1, 12, 64, 4100}) {
    const std::int64_t vocabulary = 11;
    const std::vector<float> table = random_values(dtype, vocabulary * columns, 1);
    const std::vector<std::int64_t> ids = {10, 0, 3, 3, -1, 11, 5, 7, 1};
    const auto count = static_cast<std::int64_t>(ids.size());
    const ElementArray weight(dtype, table), y(dtype, count * columns);
    const DeviceArray<std::int64_t> at(ids);
    kernel_table().embed(dtype, {weight.data(), at.data(), y.data(), vocabulary, columns}, count, nullptr);
    const std::vector<float> values = y.values();
    for (std::int64_t i = 0; i < count * columns; ++i) {
      const std::int64_t id = ids[i / columns];
      const float value = values[i];
      if (id < 0 || id >= vocabulary) {
        ASSERT_TRUE(std::isnan(value));
      } else {
        ASSERT_EQ(value, table[id * columns + i % columns]);
      }
    }
  }
}

TEST_P(Kernels, EmbeddingGradientAddsRowsInTokenOrderAndOnlyToTheirIds) {
  const DType dtype = GetParam();
  for (const std::int64_t columns : {1, 12, 64, 4100}) {
    for (const std::size_t shift : {0, 1}) {
      const std::int64_t vocabulary = 11, padding_id = 2;
      const std::vector<std::int64_t> ids = {10, 0, 3, 3, 2, -1, 11, 5, 3, 1, 10, 2, 3, 3, 3, 3};
      const auto count = static_cast<std::int64_t>(ids.size());
      std::vector<std::int64_t> places(ids.size()), sorted;
      std::iota(places.begin(), places.end(), 0);
      const auto id_at = [&](std::int64_t place) { return ids[place]; };
      std::stable_sort(places.begin(), places.end(), [&](auto a, auto b) { return id_at(a) < id_at(b); });
      for (const std::int64_t place : places) sorted.push_back(id_at(place));
      const std::vector<float> grad = random_values(dtype, count * columns, 1),
                               before = random_values(DType::kFloat32, vocabulary * columns, 2);
      std::vector<float> expected(before.size());
      std::vector<bool> touched(vocabulary);
      for (std::int64_t place = 0; place < count; ++place) {
        const std::int64_t id = id_at(place);
        if (id < 0 || id >= vocabulary || id == padding_id) continue;
        touched[id] = true;
        for (std::int64_t i = 0; i < columns; ++i) {
          expected[id * columns + i] += grad[place * columns + i];
        }
      }
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] = touched[i / static_cast<std::size_t>(columns)] ? before[i] + expected[i] : before[i];
      }
      const ElementArray g(dtype, grad, shift);
      const DeviceArray<std::int64_t> ids_there(sorted), places_there(places);
      const DeviceArray<float> weight(before, shift);
      kernel_table().embed_grad(
          dtype, {g.data(), ids_there.data(), places_there.data(), weight.data(), vocabulary, columns, padding_id},
          count, nullptr);
      // The same sums in the same order have the same bits.
      EXPECT_EQ(bytes_of(weight.values()), bytes_of(expected)) << columns;
    }
  }
}

TEST_P(Kernels, CallsWithoutRowsTouchNoMemory) {
  const DType dtype = GetParam();
  kernel_table().rms_norm(dtype, {nullptr, nullptr, nullptr, nullptr, 64, 0}, 0, nullptr);
  kernel_table().add_rms_norm(dtype, {.columns = 64}, 0, nullptr);
  kernel_table().rotary_table(dtype, {.length = 0, .half = 8}, nullptr);
  kernel_table().rotate(dtype, {.sequence = 4, .heads = 2, .head_size = 16, .rotated = 16}, 0, nullptr);
  kernel_table().rotate(dtype, {.sequence = 4, .heads = 0, .head_size = 16, .rotated = 16}, 4, nullptr);
  kernel_table().glu(dtype, {}, 0, nullptr);
  kernel_table().glu_grad(dtype, {}, 0, nullptr);
  kernel_table().cross_entropy(dtype, {.columns = 64}, 0, nullptr);
  kernel_table().scale(dtype, {}, nullptr);
  kernel_table().embed(dtype, {.vocabulary = 5, .columns = 64}, 0, nullptr);
  kernel_table().embed_grad(dtype, {.vocabulary = 5, .columns = 64}, 0, nullptr);
  // These calls still write their results, which are empty sums.
  const DeviceArray<float> grad_weight(std::vector<float>(64, 3.0F)), total(std::vector<float>(1, 3.0F));
  kernel_table().rms_norm_grad(dtype, {.grad_weight = grad_weight.data(), .columns = 64}, 0, nullptr);
  kernel_table().sum_losses({.total = total.data()}, nullptr);
  const DeviceArray<double> squares(std::vector<double>(1, 3.0));
  kernel_table().round_gradient(dtype, {.squares = squares.data()}, nullptr);
  EXPECT_EQ(grad_weight.values(), std::vector<float>(64, 0.0F));
  EXPECT_EQ(total.values(), std::vector<float>(1, 0.0F));
  EXPECT_EQ(squares.values(), std::vector<double>(1, 0.0));
}

TEST(KernelsDeathTest, KernelsRefuseADTypeThatTheyDoNotSupport) {
  for (const DType dtype : {DType::kFloat64, DType::kInt16, DType::kBool}) {
    EXPECT_DEATH(kernel_table().scale(dtype, {}, nullptr), "dtype.*does not hold");
    EXPECT_DEATH(kernel_table().grouped_linear(dtype, {}, nullptr), "dtype.*does not hold");
  }
}

TEST_F(Rows, WithMoreColumnsThanAGridHasBlocksAreRefused) {
  const std::int64_t columns = std::int64_t{1} << 40;
  EXPECT_THROW(kernel_table().embed(DType::kFloat32, {.vocabulary = 1, .columns = columns}, 1, nullptr), Error);
  EXPECT_THROW(kernel_table().rotate(DType::kBFloat16,
                                     {.sequence = 1, .heads = columns, .head_size = 64, .rotated = 64}, 1, nullptr),
               Error);
}

}  // namespace
}  // namespace rp::cuda
