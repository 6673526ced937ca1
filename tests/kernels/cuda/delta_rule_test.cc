// Compares the gated delta rule with its recurrence in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "roundpipe/error.h"
#include "tests/kernels/cuda/delta_recurrence.h"
#include "tests/kernels/cuda/device_array.h"

namespace rp::cuda {
namespace {

class DeltaRule : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Formats, DeltaRule, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         name_of);
class DeltaRuleInFp32 : public KernelTest {};

DeltaArrays make_arrays(const DeltaShape& s, DType dtype = DType::kFloat32) {
  DeltaArrays a = {s,
                   random_values(dtype, s.keys(), 1),
                   random_values(dtype, s.keys(), 2),
                   random_values(dtype, s.values(), 3),
                   random_values(DType::kFloat32, s.gates(), 4, 0.2F),
                   random_values(DType::kFloat32, s.gates(), 5),
                   random_values(dtype, s.values(), 6),
                   {}};
  for (float& decay : a.decay) decay = -std::abs(decay);
  for (float& beta : a.beta) beta = rounded(dtype, 1 / (1 + std::exp(-beta)));
  for (std::int64_t i = 0; i < s.tokens(); ++i) a.positions.push_back(i % s.length);
  return a;
}

// Makes documents of these lengths; the last one has all tokens that are left.
void cut_into_documents(DeltaArrays& a, const std::vector<std::int64_t>& lengths) {
  std::int64_t token = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) a.positions[token++] = i;
  }
  for (std::int64_t i = 0; token < a.shape.tokens(); ++i) a.positions[token++] = i;
}

struct Results {
  std::vector<float> o, grad_q, grad_k, grad_v, grad_decay, grad_beta;
};

// Calls both kernels. The heads of q, k and v are `gap` elements apart from one token to the next.
Results run(const DeltaArrays& a, DType dtype, bool with_positions, std::int64_t gap = 0) {
  const DeltaShape& s = a.shape;
  const std::int64_t key_stride = s.key_heads * s.key_size + gap, value_stride = s.value_heads * s.value_size + gap;
  const auto spread = [&](const std::vector<float>& x, std::int64_t stride) {
    std::vector<float> rows(static_cast<std::size_t>(s.tokens() * stride), NAN);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto size = static_cast<std::size_t>(stride - gap);
      rows[i / size * static_cast<std::size_t>(stride) + i % size] = x[i];
    }
    return rows;
  };
  const ElementArray q(dtype, spread(a.q, key_stride)), k(dtype, spread(a.k, key_stride)),
      v(dtype, spread(a.v, value_stride)), beta(dtype, a.beta), grad_o(dtype, a.grad_o);
  const DeviceArray<float> decay(a.decay);
  const DeviceArray<std::int64_t> positions(a.positions);
  const models::GpuDeltaInputs in = {.q = q.data(),
                                     .k = k.data(),
                                     .v = v.data(),
                                     .decay = decay.data(),
                                     .beta = beta.data(),
                                     .positions = with_positions ? positions.data() : nullptr,
                                     .q_stride = key_stride,
                                     .k_stride = key_stride,
                                     .v_stride = value_stride,
                                     .sequences = s.sequences,
                                     .length = s.length,
                                     .key_heads = s.key_heads,
                                     .value_heads = s.value_heads,
                                     .key_size = s.key_size,
                                     .value_size = s.value_size};
  const DeviceArray<float> states(s.sequences * s.value_heads * in.chunks() * s.key_size * s.value_size),
      scratch(std::vector<float>(static_cast<std::size_t>(delta_grad_scratch_floats(in)), NAN));
  const ElementArray o(dtype, s.values()), grad_q(dtype, s.keys()), grad_k(dtype, s.keys()), grad_v(dtype, s.values()),
      grad_beta(dtype, s.gates());
  const DeviceArray<float> grad_decay(s.gates());
  {
    const DeviceArray<float> forward_scratch(
        std::vector<float>(static_cast<std::size_t>(delta_scratch_floats(in)), NAN));
    kernel_table().delta_rule(dtype, {in, o.data(), states.data(), forward_scratch.data()}, nullptr);
    (void)forward_scratch.values();
  }
  kernel_table().delta_rule_grad(dtype,
                                 {.in = in,
                                  .states = states.data(),
                                  .grad_o = grad_o.data(),
                                  .grad_q = grad_q.data(),
                                  .grad_k = grad_k.data(),
                                  .grad_v = grad_v.data(),
                                  .grad_decay = grad_decay.data(),
                                  .grad_beta = grad_beta.data(),
                                  .scratch = scratch.data()},
                                 nullptr);
  (void)scratch.values();
  return {o.values(), grad_q.values(), grad_k.values(), grad_v.values(), grad_decay.values(), grad_beta.values()};
}

// Expects that differences are at most this part of the largest value.
void expect_close(const std::vector<float>& actual, const std::vector<double>& expected, double tolerance,
                  const char* what) {
  double largest = 0, difference = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double own = std::abs(static_cast<double>(actual[i]) - expected[i]);
    difference = own <= difference ? difference : own;  // a NaN stays
  }
  EXPECT_LE(difference, tolerance * largest) << what;
}

void expect_recurrence(const DeltaArrays& a, DType dtype = DType::kFloat32, bool with_positions = true,
                       std::int64_t gap = 0) {
  const Results actual = run(a, dtype, with_positions, gap);
  const DeltaResults expected = run_recurrence(a);
  const double tolerance = dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
  expect_close(actual.o, expected.o, tolerance, "o");
  expect_close(actual.grad_q, expected.grad_q, tolerance, "gradient of q");
  expect_close(actual.grad_k, expected.grad_k, tolerance, "gradient of k");
  expect_close(actual.grad_v, expected.grad_v, tolerance, "gradient of v");
  expect_close(actual.grad_decay, expected.grad_decay, 1e-5, "gradient of decay");
  expect_close(actual.grad_beta, expected.grad_beta, tolerance, "gradient of beta");
}

TEST_P(DeltaRule, AgreesWithItsRecurrence) {
  expect_recurrence(
      make_arrays({.sequences = 2, .length = 150, .key_heads = 2, .value_heads = 4, .key_size = 12, .value_size = 10},
                  GetParam()),
      GetParam(), false, 3);
}

TEST_F(DeltaRuleInFp32, AgreesWithItsRecurrenceForEveryLength) {
  for (const std::int64_t length : {1, 2, 15, 63, 64, 65, 128, 129, 333}) {
    SCOPED_TRACE(length);
    expect_recurrence(make_arrays({.length = length, .key_size = 12, .value_size = 9}), DType::kFloat32, false);
  }
}

TEST_F(DeltaRuleInFp32, AgreesWithItsRecurrenceForHeadsOfEverySize) {
  struct Sizes {
    std::int64_t key, value, key_heads, value_heads;
  };
  for (const auto& [key, value, key_heads, value_heads] :
       {Sizes{2, 1, 1, 1}, {16, 33, 1, 3}, {65, 16, 1, 2}, {128, 40, 1, 1}, {129, 17, 1, 1}, {256, 16, 2, 2}}) {
    SCOPED_TRACE(testing::Message() << key << " " << value);
    expect_recurrence(make_arrays(
        {.length = 70, .key_heads = key_heads, .value_heads = value_heads, .key_size = key, .value_size = value}));
  }
}

TEST_F(DeltaRuleInFp32, StartsWithoutAStateAtEachDocument) {
  const std::vector<std::vector<std::int64_t>> cases = {{64, 64, 72}, {63, 1, 1, 64}, {65, 62, 1}, {1, 1, 61, 1, 64, 1},
                                                        {128, 1},     {127, 73},      {129, 70},   {199}};
  for (const std::vector<std::int64_t>& lengths : cases) {
    SCOPED_TRACE(testing::PrintToString(lengths));
    DeltaArrays a = make_arrays({.length = 200, .value_heads = 2, .key_size = 12, .value_size = 10});
    cut_into_documents(a, lengths);
    expect_recurrence(a);
  }
  DeltaArrays a = make_arrays({.length = 70, .key_size = 12, .value_size = 10});
  cut_into_documents(a, std::vector<std::int64_t>(70, 1));
  expect_recurrence(a);
}

TEST_F(DeltaRuleInFp32, SurvivesStrongAndMixedDecays) {
  DeltaArrays a = make_arrays({.length = 200, .value_heads = 2, .key_size = 12, .value_size = 10});
  std::fill(a.decay.begin(), a.decay.end(), -60.0F);
  expect_recurrence(a);
  for (std::size_t i = 0; i < a.decay.size(); ++i)
    a.decay[i] = i % 3 == 0 ? -60.0F : -0.01F * static_cast<float>(i % 5);
  expect_recurrence(a);
  for (std::size_t i = 0; i < a.decay.size(); i += 10) a.decay[i] = -std::numeric_limits<float>::infinity();
  expect_recurrence(a);
}

TEST_F(DeltaRuleInFp32, SurvivesKeysThatAreNearlyEqual) {
  DeltaArrays a = make_arrays({.length = 200, .value_heads = 2, .key_size = 12, .value_size = 10});
  for (std::size_t i = 12; i < a.k.size(); ++i) a.k[i] = a.k[i % 12] + 1e-3F * a.k[i];
  expect_recurrence(a);
}

TEST_F(DeltaRuleInFp32, GivesKeysAndQueriesWithoutALengthFiniteGradients) {
  DeltaArrays a = make_arrays({.length = 70, .key_size = 12, .value_size = 10});
  std::fill(a.q.begin() + 36, a.q.begin() + 84, 0.0F);
  for (std::size_t i = 60; i < 780; ++i) a.k[i] *= 1e-4F;
  expect_recurrence(a);
}

// In the emulation the warps of neighbouring blocks run in opposite orders, so a missing barrier
// changes bits as well.
TEST_P(DeltaRule, HasTheSameBitsForASequenceAlone) {
  const DeltaShape shape = {
      .sequences = 2, .length = 70, .key_heads = 1, .value_heads = 2, .key_size = 20, .value_size = 40};
  const DeltaArrays all = make_arrays(shape, GetParam());
  const Results of_all = run(all, GetParam(), true);
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const auto part = [&](const auto& x) {
      const auto size = static_cast<std::ptrdiff_t>(x.size()) / shape.sequences;
      return std::decay_t<decltype(x)>(x.begin() + sequence * size, x.begin() + (sequence + 1) * size);
    };
    DeltaArrays alone = {shape,           part(all.q),    part(all.k),      part(all.v),
                         part(all.decay), part(all.beta), part(all.grad_o), part(all.positions)};
    alone.shape.sequences = 1;
    const Results results = run(alone, GetParam(), true);
    EXPECT_EQ(results.o, part(of_all.o));
    EXPECT_EQ(results.grad_q, part(of_all.grad_q));
    EXPECT_EQ(results.grad_k, part(of_all.grad_k));
    EXPECT_EQ(results.grad_v, part(of_all.grad_v));
    EXPECT_EQ(results.grad_decay, part(of_all.grad_decay));
    EXPECT_EQ(results.grad_beta, part(of_all.grad_beta));
  }
}

TEST_P(DeltaRule, OfNoTokensTouchesNoMemory) {
  for (const auto& [sequences, length] : {std::pair{0, 64}, {2, 0}}) {
    const models::GpuDeltaInputs in = {
        .sequences = sequences, .length = length, .key_heads = 1, .value_heads = 2, .key_size = 16, .value_size = 16};
    EXPECT_EQ(delta_grad_scratch_floats(in), 0);
    kernel_table().delta_rule(GetParam(), {.in = in}, nullptr);
    kernel_table().delta_rule_grad(GetParam(), {.in = in}, nullptr);
  }
}

TEST_P(DeltaRule, RefusesKeysThatAreTooLong) {
  const models::GpuDeltaInputs in = {
      .sequences = 1, .length = 1, .key_heads = 1, .value_heads = 1, .key_size = 257, .value_size = 16};
  EXPECT_THROW(kernel_table().delta_rule(GetParam(), {.in = in}, nullptr), Error);
  EXPECT_THROW(kernel_table().delta_rule_grad(GetParam(), {.in = in}, nullptr), Error);
}

}  // namespace
}  // namespace rp::cuda
