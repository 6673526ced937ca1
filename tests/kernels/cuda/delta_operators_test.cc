// Compares the convolution and the gated norm of linear attention with their formulae.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"

namespace rp::cuda {
namespace {

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

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
float silu_slope(float x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

// One channel of one document, whose first element is `at`.
void add_channel(DType dtype, const ConvolutionCase& c, const ConvolutionInputs& in, std::int64_t at,
                 std::int64_t length, ConvolutionResults& results) {
  const std::int64_t channel = at % c.channels;
  for (std::int64_t t = 0; t < length; ++t) {
    const std::int64_t token = at + t * c.channels, reach = std::min(t, c.taps - 1);
    const auto weight = [&](std::int64_t distance) { return (c.taps - 1 - distance) * c.channels + channel; };
    float sum = 0;
    for (std::int64_t i = reach; i >= 0; --i) sum += in.weight[weight(i)] * in.y[token - i * c.channels];
    const float value = rounded(dtype, sum), grad = in.grad[token] * silu_slope(value);
    results.x[token] = value * sigmoid(value);
    for (std::int64_t i = 0; i <= reach; ++i) {
      results.grad_y[token - i * c.channels] += in.weight[weight(i)] * grad;
      results.grad_weight[weight(i)] += grad * in.y[token - i * c.channels];
    }
  }
}

ConvolutionResults by_formula(DType dtype, const ConvolutionCase& c, const ConvolutionInputs& in) {
  ConvolutionResults results = {std::vector<float>(in.y.size()), std::vector<float>(in.y.size()),
                                std::vector<float>(in.weight.size())};
  for (std::int64_t sequence = 0; sequence < c.sequences; ++sequence) {
    for (const auto& [first, length] : documents_of(c)) {
      const std::int64_t token = sequence * c.length + first;
      for (std::int64_t channel = 0; channel < c.channels; ++channel) {
        add_channel(dtype, c, in, token * c.channels + channel, length, results);
      }
    }
  }
  return results;
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

TEST_P(DeltaOperators, ConvolutionAgreesWithItsFormula) {
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
    const ConvolutionResults expected = by_formula(dtype, c, in), actual = on_gpu(dtype, c, in);
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

struct NormInputs {
  NormInputs(DType dtype, std::int64_t rows, std::int64_t columns)
      : o(random_values(dtype, rows * columns, 1, 3)),
        z(random_values(dtype, rows * columns, 2)),
        weight(random_values(dtype, columns, 3)),
        grad(random_values(dtype, rows * columns, 4)) {}
  std::vector<float> o, z, weight, grad;
};

struct NormResults {
  std::vector<float> y, grad_o, grad_z;
  std::vector<double> grad_weight, sizes;  // the sums of terms and of their absolute values
};

// One row, whose first element is `at`. Values are rounded to the dtype where the CPU rounds them.
void add_norm_row(DType dtype, const NormInputs& in, std::size_t at, NormResults& results) {
  const std::size_t columns = in.weight.size();
  const auto round = [&](double x) { return static_cast<double>(rounded(dtype, static_cast<float>(x))); };
  const auto wide = [](float x) { return static_cast<double>(x); };
  double squares = 0, products = 0;
  for (std::size_t c = 0; c < columns; ++c) squares += wide(in.o[at + c]) * wide(in.o[at + c]);
  const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + 1e-5);
  const auto sigmoid_of = [&](std::size_t c) { return 1 / (1 + std::exp(-wide(in.z[at + c]))); };
  const auto grad_normal = [&](std::size_t c) {
    return wide(in.grad[at + c]) * wide(in.z[at + c]) * sigmoid_of(c) * wide(in.weight[c]);
  };
  for (std::size_t c = 0; c < columns; ++c) products += grad_normal(c) * wide(in.o[at + c]) * rstd;
  for (std::size_t c = 0; c < columns; ++c) {
    const std::size_t i = at + c;
    const double gate = wide(in.z[i]), s = sigmoid_of(c), normal = wide(in.o[i]) * rstd, once = round(normal);
    const double scaled = round(wide(in.weight[c]) * once), term = wide(in.grad[i]) * gate * s * once;
    results.y[i] = static_cast<float>(scaled * gate * s);
    results.grad_o[i] = static_cast<float>(rstd * (grad_normal(c) - normal * products / static_cast<double>(columns)));
    results.grad_z[i] = static_cast<float>(wide(in.grad[i]) * scaled * s * (1 + gate * (1 - s)));
    results.grad_weight[c] += term;
    results.sizes[c] += std::abs(term);
  }
}

NormResults norm_by_formula(DType dtype, const NormInputs& in) {
  const std::size_t count = in.o.size(), columns = in.weight.size();
  NormResults results = {std::vector<float>(count), std::vector<float>(count), std::vector<float>(count),
                         std::vector<double>(columns), std::vector<double>(columns)};
  for (std::size_t at = 0; at < count; at += columns) add_norm_row(dtype, in, at, results);
  return results;
}

void check_norm(DType dtype, std::int64_t rows, std::int64_t columns) {
  const NormInputs in(dtype, rows, columns);
  const NormResults expected = norm_by_formula(dtype, in);
  const std::int64_t count = rows * columns;
  const ElementArray o(dtype, in.o), z(dtype, in.z), weight(dtype, in.weight), grad(dtype, in.grad), y(dtype, count),
      grad_o(dtype, count), grad_z(dtype, count);
  const DeviceArray<float> grad_weight(std::vector<float>(in.weight.size(), 3.0F)),
      sums(models::num_gated_norm_sums(rows) * columns);
  const models::GpuGatedNorm call = {o.data(), z.data(), weight.data(), y.data(), columns, 1e-5F};
  kernel_table().gated_norm(dtype, call, rows, nullptr);
  kernel_table().gated_norm_grad(
      dtype, {call, grad.data(), grad_o.data(), grad_z.data(), grad_weight.data(), sums.data()}, rows, nullptr);
  (void)sums.values();
  // A normal value near the middle of two elements may be rounded to either.
  const bool is_wide = dtype == DType::kFloat32;
  expect_near(dtype, y.values(), expected.y, is_wide ? 40 : 4.2F, 1e-3F, "y");
  expect_near(dtype, grad_o.values(), expected.grad_o, is_wide ? 200 : 1.1F, 1, "grad_o");
  expect_near(dtype, grad_z.values(), expected.grad_z, is_wide ? 40 : 4.2F, is_wide ? 1 : 1e-2F, "grad_z");
  const std::vector<float> actual = grad_weight.values();
  for (std::size_t c = 0; c < actual.size(); ++c) {
    const double tolerance = is_wide ? 1e-6 : dtype == DType::kFloat16 ? 2e-4 : 2e-3;
    ASSERT_NEAR(actual[c], expected.grad_weight[c], tolerance * expected.sizes[c]) << "column " << c;
  }
}

TEST_P(DeltaOperators, GatedNormAgreesWithItsFormula) {
  for (const std::int64_t columns : {1, 5, 32, 48, 128, 200}) {
    for (const std::int64_t rows : {0, 1, 9, 130, 300}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << columns);
      check_norm(GetParam(), rows, columns);
    }
  }
}

}  // namespace
}  // namespace rp::cuda
