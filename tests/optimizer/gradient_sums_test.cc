// What is computed from the gradients of a group before its update: sums, squares, rounded gradients and signs of
// loads.
#include "optimizer/update.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/optimizer/weight_group.h"

namespace rp {
namespace {

TEST(GradientSum, EveryInstructionSetAddsTheUsesFirstAndThenTheSum) {
  for (const std::size_t size : sizes()) {
    for (const DType dtype : kDTypes) {
      const Shape shape{.num_elements = size, .offset = size % 3, .num_uses = 1 + size % 2, .gradient = dtype};
      Group expected(shape);
      for (std::size_t i = 0; i < size; ++i) expected.m.set(i, expected.m.get(i) + gradient_of(expected, i));
      for (const UpdateKernels* kernels : usable_update_kernels()) {
        Group group(shape);
        kernels->add(group.m.floats(), group.all_gradients(), 0, size);
        ASSERT_TRUE(group.same_bits(expected)) << text_of(*kernels, shape);
      }
    }
  }
}

// Adds in the order that update.h promises.
double squares_by_the_header(const Group& group) {
  double total = 0;
  for (std::size_t begin = 0; begin < group.shape.num_elements; begin += 65'536) {
    std::array<double, 16> lanes{};
    for (std::size_t i = begin; i < std::min(begin + 65'536, group.shape.num_elements); ++i) {
      const double g = static_cast<double>(gradient_of(group, i));
      lanes[(i - begin) % 16] += g * g;
    }
    total += std::accumulate(lanes.begin(), lanes.end(), 0.0);
  }
  return total;
}

TEST(SumOfSquares, EveryInstructionSetFillsTheSameLanes) {
  for (const std::size_t size : sizes()) {
    for (const DType dtype : kDTypes) {
      Group group({.num_elements = size, .offset = size % 5, .num_uses = 1 + size % 2, .gradient = dtype});
      std::array<double, 16> expected{};
      for (std::size_t i = 0; i < size; ++i) {
        expected[i % 16] += static_cast<double>(gradient_of(group, i)) * static_cast<double>(gradient_of(group, i));
      }
      for (const UpdateKernels* kernels : usable_update_kernels()) {
        std::array<double, 16> lanes{};
        kernels->squares(group.all_gradients(), 0, size, lanes.data());
        ASSERT_EQ(lanes, expected) << text_of(*kernels, group.shape);
      }
    }
  }
}

double sum_of_squares(const GroupGradients& gradients, ThreadTeam& team) {
  std::vector<double> sums(num_chunks(gradients.num_elements));
  sum_squares_of_chunks(gradients, sums, team);
  return add_in_order(sums);
}

TEST(Passes, TheNumberOfThreadsDoesNotChangeABit) {
  const Shape shape{.num_elements = 5 * 65'536 + 777, .num_uses = 2};
  const UpdateStep step = update_step_of(kSettings, 7);
  Group expected(shape);
  const double squares = squares_by_the_header(expected);
  update_by_the_header(expected, step);
  Group expected_sums(shape);
  for (std::size_t i = 0; i < shape.num_elements; ++i) {
    expected_sums.m.set(i, expected_sums.m.get(i) + gradient_of(expected_sums, i));
  }
  for (const int num_threads : {1, 2, 3, 7}) {
    ThreadTeam team(num_threads);
    Group group(shape);
    EXPECT_EQ(sum_of_squares(group.all_gradients(), team), squares);
    update_group(group.state(), group.all_gradients(), step, team);
    group.old_master = expected.old_master;
    EXPECT_TRUE(group.same_bits(expected)) << num_threads;

    Group sums(shape);
    add_gradients(sums.m.floats(), sums.all_gradients(), team);
    EXPECT_TRUE(sums.same_bits(expected_sums)) << num_threads;
  }
}

// One thread adds a short piece, several a long one.
TEST(Passes, ASumBeginsInPlaceOfWhatWasThere) {
  ThreadTeam team(3);
  for (const std::size_t num_elements : {std::size_t{5}, std::size_t{2 * 65'536}, std::size_t{3 * 65'536 + 777}}) {
    Group group(Shape{.num_elements = num_elements, .num_uses = 1});
    std::vector<float> expected(num_elements, 0.0F);
    std::vector<float> sums(num_elements, std::numeric_limits<float>::quiet_NaN());
    add_gradients(expected.data(), group.all_gradients(), team);
    add_gradients(sums.data(), group.all_gradients(), team, true);
    EXPECT_EQ(sums, expected) << num_elements;
    add_gradients(expected.data(), group.all_gradients(), team);
    add_gradients(sums.data(), group.all_gradients(), team);
    EXPECT_EQ(sums, expected) << num_elements;
    EXPECT_EQ(expected.back(), 2 * gradient_of(group, num_elements - 1)) << "the last one, too";
  }
}

TEST(RoundGradient, HasTheBitsOfRoundingAndOfTheSumOfSquares) {
  const std::size_t size = 2 * 65'536 + 777;
  std::vector<float> sums(size);
  for (std::size_t i = 0; i < size; ++i) sums[i] = std::sin(static_cast<float>(i)) * 3.0F;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    ThreadTeam team(2);
    std::vector<float> rounded(size), expected(size);
    std::vector<double> partial_sums(num_chunks(size));
    const double squares = round_gradient(sums.data(), rounded.data(), dtype, size, partial_sums, team);
    kPortableUpdateKernels.skip(
        {.old_master = sums.data(), .working = expected.data(), .working_dtype = dtype, .num_elements = size}, 0, size);
    EXPECT_EQ(std::memcmp(rounded.data(), expected.data(), size * sizeof(float)), 0);
    const void* const use = expected.data();
    EXPECT_EQ(squares, sum_of_squares({.uses = &use, .num_uses = 1, .dtype = dtype, .num_elements = size}, team));
  }
}

TEST(SumOfSquares, NanAndInfinityAreKept) {
  ThreadTeam team(2);
  Group group({.num_elements = 100'000});
  group.gradients[0].set(70'000, std::numeric_limits<float>::infinity());
  EXPECT_EQ(sum_of_squares(group.all_gradients(), team), std::numeric_limits<double>::infinity());
  group.gradients[0].set(5, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(sum_of_squares(group.all_gradients(), team)));
}

TEST(WrittenGradient, IsTheOneThatARuleSees) {
  ThreadTeam team(2);
  for (const DType dtype : kDTypes) {
    Group group({.num_elements = 70'000, .num_uses = 2, .gradient = dtype});
    std::vector<float> gradient(70'000);
    UpdateStep step;
    step.gradient_scale = 0.5F;
    step.clips_values = true;
    step.max_value = 0.125F;
    write_gradient(gradient.data(), group.all_gradients(), step, team);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_EQ(gradient[i], std::max(-0.125F, std::min(0.125F, gradient_of(group, i) * 0.5F))) << i;
    }
  }
}

std::vector<float> signs_of(const std::vector<float>& loads) {
  const void* const use = loads.data();
  return load_signs({.uses = &use, .num_uses = 1, .dtype = DType::kFloat32, .num_elements = loads.size()});
}

TEST(LoadSigns, CompareWithTheMeanAndAreZeroWhereALoadEqualsIt) {
  using Signs = std::vector<float>;
  EXPECT_EQ(signs_of({5, 0, 3, 4}), (Signs{1, -1, 0, 1}));
  EXPECT_EQ(signs_of({4, 4, 4}), (Signs{0, 0, 0}));
  EXPECT_EQ(signs_of({1, 1, 2}), (Signs{-1, -1, 1})) << "the mean, 4/3, is no fp32 number";
  EXPECT_EQ(signs_of({0x1p24F, 0x1p24F - 1, 0x1p24F - 2}), (Signs{1, 0, -1})) << "loads are exact up to 2^24";
  EXPECT_EQ(signs_of({0x1p24F, 0x1p24F - 1, 0x1p24F}), (Signs{1, -1, 1}));
  EXPECT_EQ(signs_of({0.5F * 5, 0, 0.5F * 3, 0.5F * 4}), signs_of({5, 0, 3, 4})) << "any positive factor cancels";
  EXPECT_TRUE(signs_of({}).empty()) << "another node owns them";
}

TEST(LoadSigns, MoveACorrectionByTheRateAgainstThem) {
  for (const bool two_masters : {false, true}) {
    constexpr float kRate = 1e-3F;
    std::vector<float> before(37), after(37), loads(37);
    for (std::size_t i = 0; i < before.size(); ++i) {
      before[i] = 0.01F * static_cast<float>(i) - 0.2F;
      loads[i] = static_cast<float>(i);  // their mean is that of element 18
    }
    after = before;
    const std::vector<float> signs = signs_of(loads);
    const void* const use = signs.data();
    ThreadTeam team(1);
    update_group({.old_master = two_masters ? before.data() : after.data(),
                  .master = after.data(),
                  .num_elements = after.size()},
                 {.uses = &use, .num_uses = 1, .dtype = DType::kFloat32, .num_elements = signs.size()},
                 correction_step(1e-3), team);
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(after[i], i < 18 ? before[i] + kRate : i > 18 ? before[i] - kRate : before[i]) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace rp
