#include "kernels/cpu/delta_kernels.h"
#include "tests/common/random_floats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace rp::models {
namespace {

std::vector<float> normal_floats(std::int64_t count, float scale = 1) {
  static std::mt19937 generator(11);
  NormalFloats normal(0, scale);
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& value : result) value = normal(generator);
  return result;
}

// An array of activations: fp32 numbers, or bits of a 16-bit format that are small numbers in both.
struct Array {
  explicit Array(std::int64_t count) : floats(normal_floats(count)) {
    for (const float value : floats) {
      const auto fraction = static_cast<std::uint16_t>(std::lround(std::abs(value) * 100) & 0xff);
      halves.push_back(static_cast<std::uint16_t>((value < 0 ? 0xbe00U : 0x3e00U) | fraction));
    }
  }
  [[nodiscard]] const void* as(DType dtype) const {
    return dtype == DType::kFloat32 ? static_cast<const void*>(floats.data()) : halves.data();
  }
  std::vector<float> floats;
  std::vector<std::uint16_t> halves;
};

constexpr DType kFormats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// Expects that `run(table, result)` leaves the same bits in `result`, 4-byte words, for all tables.
template <typename Run>
void expect_same_on_all_sets(std::int64_t words, const Run& run) {
  std::vector<float> first;
  for (const DeltaKernels* table : usable_delta_kernels()) {
    std::vector<float> result(static_cast<std::size_t>(words));
    run(*table, result.data());
    if (first.empty()) first = result;
    EXPECT_EQ(std::memcmp(first.data(), result.data(), first.size() * sizeof(float)), 0) << table->name;
  }
}

TEST(DeltaKernels, ConvolutionsHaveTheSameBitsOnEverySet) {
  constexpr std::int64_t kLength = 70;
  for (const DType dtype : kFormats) {
    for (const std::int64_t channels : {1, 15, 16, 33, 300}) {
      for (const std::int64_t taps : {1, 4, 16}) {
        const std::int64_t size = kLength * channels;
        const Array y(size), grad(size);
        const std::vector<float> weight = normal_floats(taps * channels);
        expect_same_on_all_sets(2 * size + taps * channels, [&](const DeltaKernels& table, float* result) {
          table.convolution(dtype, {y.as(dtype), weight.data(), result, kLength, channels, taps}, 0, channels);
          table.convolution_grad(
              dtype,
              {grad.as(dtype), y.as(dtype), weight.data(), result + size, result + 2 * size, kLength, channels, taps},
              0, channels);
        });
      }
    }
  }
}

TEST(DeltaKernels, GatesAndNormsHaveTheSameBitsOnEverySet) {
  constexpr std::int64_t kRows = 9;
  for (const DType dtype : kFormats) {
    for (const std::int64_t columns : {1, 16, 31, 48}) {
      const std::int64_t size = kRows * columns;
      const Array a(size), b(size), c(size), weight(columns);
      const std::vector<float> a_log = normal_floats(columns), dt_bias = normal_floats(columns, 30);
      const std::vector<float> grad_decay = normal_floats(size);
      expect_same_on_all_sets(4 * size + 2 * columns, [&](const DeltaKernels& table, float* result) {
        table.gates(dtype, {a.as(dtype), b.as(dtype), a_log.data(), dt_bias.data(), result, result + size, columns}, 0,
                    kRows);
        table.gates_grad(
            dtype,
            {grad_decay.data(), c.as(dtype), a.as(dtype), b.as(dtype), a_log.data(), dt_bias.data(), result + 2 * size,
             result + 3 * size, result + 4 * size, result + 4 * size + columns, columns},
            0, kRows);
      });
      expect_same_on_all_sets(3 * size + columns + kRows, [&](const DeltaKernels& table, float* result) {
        float* rstd = result + 3 * size + columns;
        table.gated_norm(dtype, {a.as(dtype), b.as(dtype), weight.as(dtype), result, rstd, columns, 1e-6F}, 0, kRows);
        table.gated_norm_grad(dtype,
                              {c.as(dtype), a.as(dtype), b.as(dtype), weight.as(dtype), rstd, result + size,
                               result + 2 * size, result + 3 * size, columns},
                              0, kRows);
      });
    }
  }
}

TEST(DeltaKernels, TheRuleHasTheSameBitsOnEverySet) {
  for (const DType dtype : kFormats) {
    for (const std::int64_t length : {1, 7, 64, 150}) {
      for (const auto& [keys, columns] : {std::pair<std::int64_t, std::int64_t>{16, 16}, {21, 40}, {40, 7}}) {
        constexpr std::int64_t kValues = 2;
        const std::int64_t k_size = length * keys, v_size = length * kValues * columns, gates = length * kValues;
        const Array q(k_size), k(k_size), v(v_size), beta(gates), grad_o(v_size);
        std::vector<float> decay = normal_floats(gates, 2);
        for (float& value : decay) value = -std::abs(value);
        const std::int64_t states = (length - 1) / kDeltaChunk * kValues * keys * columns;
        const std::int64_t total = states + 2 * v_size + 2 * k_size + 2 * gates;
        expect_same_on_all_sets(total, [&](const DeltaKernels& table, float* result) {
          std::vector<float> scratch(static_cast<std::size_t>(table.scratch_floats(keys, columns, kValues)));
          const DeltaHead head{.q = q.as(dtype),
                               .k = k.as(dtype),
                               .v = v.as(dtype),
                               .decay = decay.data(),
                               .beta = beta.as(dtype),
                               .q_stride = keys,
                               .k_stride = keys,
                               .v_stride = kValues * columns,
                               .gate_stride = kValues,
                               .length = length,
                               .key_size = keys,
                               .value_size = columns,
                               .values = kValues,
                               .states = result,
                               .states_stride = kValues * keys * columns,
                               .scratch = scratch.data()};
          float* o = result + states;
          table.delta_head(dtype, head, {o, kValues * columns});
          float* grad_q = o + v_size;
          float* grad_v = grad_q + 2 * k_size;
          table.delta_head_grad(dtype, head,
                                {.grad_o = grad_o.as(dtype),
                                 .grad_q = grad_q,
                                 .grad_k = grad_q + k_size,
                                 .grad_v = grad_v,
                                 .grad_decay = grad_v + v_size,
                                 .grad_beta = grad_v + v_size + gates,
                                 .key_stride = keys,
                                 .value_stride = kValues * columns,
                                 .gate_stride = kValues});
        });
      }
    }
  }
}

// softplus and its logarithm, from the smallest result to where it is its argument.
TEST(DeltaKernels, SoftplusAgreesWithDoublePrecision) {
  std::vector<float> a;
  for (float x = -85; x < 30; x += 0.001F) a.push_back(x);
  const auto count = static_cast<std::int64_t>(a.size());
  const std::vector<float> zeros(a.size());
  std::vector<float> decay(a.size()), beta(a.size());
  delta_kernels().gates(DType::kFloat32,
                        {a.data(), a.data(), zeros.data(), zeros.data(), decay.data(), beta.data(), count}, 0, 1);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double expected = a[i] > 20 ? a[i] : std::log1p(std::exp(static_cast<double>(a[i])));
    ASSERT_NEAR(-decay[i], expected, expected * 6e-7) << a[i];
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  delta_kernels().gates(DType::kFloat32, {&nan, &nan, zeros.data(), zeros.data(), decay.data(), beta.data(), 1}, 0, 1);
  EXPECT_TRUE(std::isnan(decay[0]) && std::isnan(beta[0]));
}

TEST(DeltaKernelsDeathTest, LoopsRefuseADTypeThatTheyDoNotSupport) {
  std::vector<float> x(64, 1.0F), y(64);
  for (const DeltaKernels* table : usable_delta_kernels()) {
    EXPECT_DEATH(table->convolution(DType::kFloat64, {x.data(), x.data(), y.data(), 1, 16, 1}, 0, 16),
                 "dtype.*does not hold")
        << table->name;
    EXPECT_DEATH(table->delta_head(DType::kInt16, {}, {}), "dtype.*does not hold") << table->name;
  }
}

}  // namespace
}  // namespace rp::models
