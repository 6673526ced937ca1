// Compares the convolution and the gated norm of linear attention with the portable table of the
// CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/delta_kernels.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"

namespace rp::cuda {
namespace {

using models::kPortableDeltaKernels;

class DeltaOperators : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Formats, DeltaOperators, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         name_of);

struct ConvolutionCase {
  std::int64_t sequences, length, channels, taps;
  std::vector<std::int64_t> documents{};  // of each sequence; none: one
};

// The documents of a case's sequence: first token and length.
std::vector<std::pair<std::int64_t, std::int64_t>> documents_of(const ConvolutionCase& c) {
  std::vector<std::pair<std::int64_t, std::int64_t>> result;
  std::int64_t first = 0;
  for (const std::int64_t length : c.documents) {
    result.emplace_back(first, length);
    first += length;
  }
  if (first < c.length) result.emplace_back(first, c.length - first);
  return result;
}

std::vector<std::int64_t> positions_of(const ConvolutionCase& c) {
  std::vector<std::int64_t> result;
  for (std::int64_t sequence = 0; sequence < c.sequences; ++sequence) {
    for (const auto& [first, length] : documents_of(c)) {
      for (std::int64_t i = 0; i < length; ++i) result.push_back(i);
    }
  }
  return result;
}

struct ConvolutionResults {
  std::vector<float> x, grad_y, grad_weight;
};

struct ConvolutionInputs {
  ConvolutionInputs(DType dtype, const ConvolutionCase& c)
      : y(random_values(dtype, c.sequences * c.length * c.channels, 1)),
        weight(random_values(DType::kFloat32, c.taps * c.channels, 2)),
        grad(random_values(dtype, c.sequences * c.length * c.channels, 3)) {}
  std::vector<float> y, weight, grad;
};

// The CPU's loops read and write the working dtype, so the values pass through ElementArrays.
ConvolutionResults on_cpu(DType dtype, const ConvolutionCase& c, const ConvolutionInputs& in) {
  const std::int64_t count = c.sequences * c.length * c.channels;
  std::vector<float> wide_x(static_cast<std::size_t>(count)), grad_weight(in.weight.size());
  const auto elements = [&](const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * (dtype == DType::kFloat32 ? 4 : 2));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kFloat32) std::memcpy(&bytes[4 * i], &values[i], 4);
      const auto half = dtype == DType::kFloat16 ? std::bit_cast<std::uint16_t>(static_cast<_Float16>(values[i]))
                                                 : bf16_bits(values[i]);
      if (dtype != DType::kFloat32) std::memcpy(&bytes[2 * i], &half, 2);
    }
    return bytes;
  };
  const auto floats = [&](const std::vector<std::byte>& bytes) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t half = 0;
      if (dtype == DType::kFloat32) std::memcpy(&values[i], &bytes[4 * i], 4);
      if (dtype != DType::kFloat32) std::memcpy(&half, &bytes[2 * i], 2);
      if (dtype == DType::kFloat16) values[i] = static_cast<float>(std::bit_cast<_Float16>(half));
      if (dtype == DType::kBFloat16) values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
    }
    return values;
  };
  const std::vector<std::byte> y = elements(in.y), grad = elements(in.grad);
  std::vector<std::byte> x(y.size()), grad_y(y.size());
  const std::size_t bytes_of_token =
      y.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, c.sequences * c.length));
  for (std::int64_t sequence = 0; sequence < c.sequences; ++sequence) {
    for (const auto& [first, length] : documents_of(c)) {
      const std::size_t at = static_cast<std::size_t>(sequence * c.length + first) * bytes_of_token;
      kPortableDeltaKernels.convolution(dtype, {&y[at], in.weight.data(), &x[at], length, c.channels, c.taps}, 0,
                                        c.channels);
      kPortableDeltaKernels.convolution_grad(
          dtype, {&grad[at], &y[at], in.weight.data(), &grad_y[at], grad_weight.data(), length, c.channels, c.taps}, 0,
          c.channels);
    }
  }
  return {floats(x), floats(grad_y), grad_weight};
}

ConvolutionResults on_gpu(DType dtype, const ConvolutionCase& c, const ConvolutionInputs& in) {
  const std::int64_t count = c.sequences * c.length * c.channels;
  const ElementArray y(dtype, in.y), grad(dtype, in.grad), x(dtype, count), grad_y(dtype, count);
  const DeviceArray<float> weight(in.weight), grad_weight(std::vector<float>(in.weight.size(), 3.0F)),
      sums(models::num_convolution_sums(c.sequences, c.length) * c.taps * c.channels);
  const DeviceArray<std::int64_t> positions(positions_of(c));
  const models::GpuConvolution call = {
      y.data(),    weight.data(), x.data(),   c.documents.empty() ? nullptr : positions.data(),
      c.sequences, c.length,      c.channels, c.taps};
  kernel_table().convolution(dtype, call, nullptr);
  kernel_table().convolution_grad(dtype, {call, grad.data(), grad_y.data(), nullptr, nullptr}, nullptr);
  const std::vector<float> untrained = grad_y.values();
  kernel_table().convolution_grad(dtype, {call, grad.data(), grad_y.data(), grad_weight.data(), sums.data()}, nullptr);
  EXPECT_EQ(grad_y.values(), untrained);
  (void)sums.values();
  return {x.values(), grad_y.values(), grad_weight.values()};
}

TEST_P(DeltaOperators, ConvolutionAgreesWithTheCpu) {
  const DType dtype = GetParam();
  for (const ConvolutionCase& c : {ConvolutionCase{1, 1, 1, 4},
                                   {1, 3, 5, 4},
                                   {2, 70, 9, 1},
                                   {2, 130, 300, 4},
                                   {1, 200, 17, 3},
                                   {2, 64, 20, 7},
                                   {1, 130, 5, 16},
                                   {2, 140, 9, 4, {1, 1, 2, 3, 57, 1, 63}},
                                   {1, 140, 9, 5, {64, 1, 3, 60, 12}}}) {
    SCOPED_TRACE(testing::Message() << c.length << " tokens, " << c.channels << " channels, " << c.taps << " taps");
    const ConvolutionInputs in(dtype, c);
    const ConvolutionResults expected = on_cpu(dtype, c, in), actual = on_gpu(dtype, c, in);
    const float units = dtype == DType::kFloat32 ? 40 : 2.1F;
    expect_near(dtype, actual.x, expected.x, units, 1e-3F, "x");
    expect_near(dtype, actual.grad_y, expected.grad_y, units, dtype == DType::kFloat32 ? 1 : 0.01F, "grad_y");
    float largest = 0;
    for (const float value : expected.grad_weight) largest = std::max(largest, std::abs(value));
    expect_near(DType::kFloat32, actual.grad_weight, expected.grad_weight, 40, largest, "grad_weight");
  }
}

TEST_P(DeltaOperators, ConvolutionOfNoTokensHasAGradientOfZeros) {
  for (const auto& [sequences, length] : {std::pair{0, 5}, {3, 0}}) {
    const DeviceArray<float> weight(12), grad_weight(std::vector<float>(12, 3.0F));
    const models::GpuConvolution call = {
        .weight = weight.data(), .sequences = sequences, .length = length, .channels = 3, .taps = 4};
    kernel_table().convolution(GetParam(), call, nullptr);
    kernel_table().convolution_grad(GetParam(), {.forward = call, .grad_weight = grad_weight.data()}, nullptr);
    EXPECT_EQ(grad_weight.values(), std::vector<float>(12));
  }
}

// The formula, whose values are rounded to the dtype where the CPU rounds them.
TEST_P(DeltaOperators, GatedNormAgreesWithItsFormula) {
  const DType dtype = GetParam();
  for (const std::int64_t columns : {1, 5, 32, 48, 128, 200}) {
    for (const std::int64_t rows : {0, 1, 9, 130, 300}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << columns);
      const std::vector<float> o = random_values(dtype, rows * columns, 1, 3),
                               z = random_values(dtype, rows * columns, 2), weight = random_values(dtype, columns, 3),
                               grad = random_values(dtype, rows * columns, 4);
      std::vector<float> y(o.size()), grad_o(o.size()), grad_z(o.size());
      std::vector<double> grad_weight(weight.size()), sizes(weight.size());
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto at = static_cast<std::size_t>(row * columns);
        double squares = 0, products = 0;
        for (std::size_t c = 0; c < weight.size(); ++c)
          squares += static_cast<double>(o[at + c]) * static_cast<double>(o[at + c]);
        const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + 1e-5);
        const auto sigmoid = [&](std::size_t i) { return 1 / (1 + std::exp(-static_cast<double>(z[i]))); };
        const auto grad_normal = [&](std::size_t c) {
          return static_cast<double>(grad[at + c]) * static_cast<double>(z[at + c]) * sigmoid(at + c) *
                 static_cast<double>(weight[c]);
        };
        for (std::size_t c = 0; c < weight.size(); ++c)
          products += grad_normal(c) * static_cast<double>(o[at + c]) * rstd;
        for (std::size_t c = 0; c < weight.size(); ++c) {
          const std::size_t i = at + c;
          const double gate = static_cast<double>(z[i]), s = sigmoid(i), normal = static_cast<double>(o[i]) * rstd;
          const double once = static_cast<double>(rounded(dtype, static_cast<float>(normal)));
          const double scaled =
              static_cast<double>(rounded(dtype, static_cast<float>(static_cast<double>(weight[c]) * once)));
          y[i] = static_cast<float>(scaled * gate * s);
          grad_o[i] = static_cast<float>(rstd * (grad_normal(c) - normal * products / static_cast<double>(columns)));
          grad_z[i] = static_cast<float>(static_cast<double>(grad[i]) * scaled * s * (1 + gate * (1 - s)));
          const double term = static_cast<double>(grad[i]) * gate * s * once;
          grad_weight[c] += term;
          sizes[c] += std::abs(term);
        }
      }
      const ElementArray in(dtype, o), gates(dtype, z), w(dtype, weight), g(dtype, grad), out(dtype, rows * columns),
          out_o(dtype, rows * columns), out_z(dtype, rows * columns);
      const DeviceArray<float> out_weight(std::vector<float>(weight.size(), 3.0F)),
          sums(models::num_gated_norm_sums(rows) * columns);
      const models::GpuGatedNorm call = {in.data(), gates.data(), w.data(), out.data(), columns, 1e-5F};
      kernel_table().gated_norm(dtype, call, rows, nullptr);
      kernel_table().gated_norm_grad(
          dtype, {call, g.data(), out_o.data(), out_z.data(), out_weight.data(), sums.data()}, rows, nullptr);
      (void)sums.values();
      // A normal value near the middle of two elements may be rounded to either.
      const float units = dtype == DType::kFloat32 ? 40 : 4.2F;
      expect_near(dtype, out.values(), y, units, 1e-3F, "y");
      expect_near(dtype, out_o.values(), grad_o, dtype == DType::kFloat32 ? 200 : 1.1F, 1, "grad_o");
      expect_near(dtype, out_z.values(), grad_z, units, dtype == DType::kFloat32 ? 1 : 1e-2F, "grad_z");
      const std::vector<float> actual = out_weight.values();
      for (std::size_t c = 0; c < weight.size(); ++c) {
        const double tolerance = dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 2e-4 : 2e-3;
        ASSERT_NEAR(actual[c], grad_weight[c], tolerance * sizes[c]) << "column " << c;
      }
    }
  }
}

}  // namespace
}  // namespace rp::cuda
