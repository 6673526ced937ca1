#include "optimizer/update.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/optimizer/update_golden.h"
#include "tests/optimizer/weight_group.h"

namespace rp {
namespace {

// Checks that every instruction set of this machine does to a group of this shape what
// kernels/update_arguments.h defines.
void expect_header_arithmetic(const Shape& shape, const UpdateStep& step) {
  Group expected(shape);
  update_by_the_header(expected, step);
  for (const UpdateKernels* kernels : usable_update_kernels()) {
    Group group(shape);
    kernels->update(group.state(), group.all_gradients(), step, 0, shape.num_elements);
    if (!shape.two_masters) group.old_master = expected.old_master;
    ASSERT_TRUE(group.same_bits(expected)) << text_of(*kernels, shape);
  }
}

TEST(AdamW, EveryInstructionSetDoesTheArithmeticOfTheHeaderForEverySizeAndFormat) {
  UpdateStep step = update_step_of(kSettings, 3);
  for (const std::size_t size : sizes()) {
    for (const DType gradient : kDTypes) {
      for (const DType working : kDTypes) {
        expect_header_arithmetic({.num_elements = size, .gradient = gradient, .working = working}, step);
      }
    }
  }
}

const std::vector<UpdateRule> kOtherRules = {Adam{.learning_rate = 1e-2, .beta1 = 0.3, .weight_decay = 0.1},
                                             Sgd{.learning_rate = 0.1, .weight_decay = 0.1},
                                             Sgd{.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.2},
                                             Sgd{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}};

TEST(UpdateRules, EveryInstructionSetDoesTheArithmeticOfTheHeaderForEverySizeAndFormat) {
  for (const UpdateRule& rule : kOtherRules) {
    for (const std::int64_t t : {1, 3}) {
      for (const std::size_t size : sizes()) {
        const DType gradient = kDTypes[size % 3];
        for (const DType working : kDTypes) {
          expect_header_arithmetic({.num_elements = size, .offset = size % 2, .gradient = gradient, .working = working},
                                   update_step_of(rule, t));
        }
      }
    }
  }
}

TEST(UpdateRules, ClipEachValueAndKeepNan) {
  for (const UpdateKernels* kernels : usable_update_kernels()) {
    for (const UpdateRule& rule : kOtherRules) {
      UpdateStep step = update_step_of(rule, 2);
      step.clips_values = true;
      step.max_value = 0.25F;
      step.gradient_scale = 3;
      expect_header_arithmetic({.num_elements = 999}, step);
      Group group({.num_elements = 33});
      group.gradients[0].set(0, std::numeric_limits<float>::quiet_NaN());
      group.gradients[0].set(1, -std::numeric_limits<float>::infinity());
      kernels->update(group.state(), group.all_gradients(), step, 0, 33);
      EXPECT_TRUE(std::isnan(group.working.get(0))) << kernels->name;
      EXPECT_TRUE(std::isfinite(group.working.get(1))) << kernels->name;
    }
  }
}

TEST(UpdateRules, WithoutMomentumTouchNoMoment) {
  Group group({.num_elements = 100});
  GroupState state = group.state();
  state.m = state.v = nullptr;
  ThreadTeam team(1);
  update_group(state, group.all_gradients(), update_step_of(Sgd{}, 1), team);
  EXPECT_EQ(num_moments(update_step_of(Sgd{}, 1).kind), 0);
  EXPECT_EQ(num_moments(update_step_of(Sgd{.momentum = 0.5}, 1).kind), 1);
}

// Groups of parameters: each span has its own rule, wherever its borders are.
TEST(UpdateRules, OfSpansLeaveEachOthersElementsAlone) {
  const Shape shape{.num_elements = 3 * 65'536 + 5};
  const std::vector<std::size_t> borders = {0, 7, 64, 65'536, 100'001, shape.num_elements};
  std::vector<UpdateSpan> spans;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    const UpdateRule rule = i == 4 ? UpdateRule(AdamW{.weight_decay = 0.1}) : kOtherRules[i];
    spans.push_back({.begin = borders[i], .end = borders[i + 1], .step = update_step_of(rule, 2)});
  }
  Group expected(shape);
  for (const UpdateSpan& span : spans) {
    Group whole(shape);
    update_by_the_header(whole, span.step);
    for (std::size_t i = span.begin; i < span.end; ++i) {
      expected.master.set(i, whole.master.get(i));
      expected.m.set(i, whole.m.get(i));
      expected.v.set(i, whole.v.get(i));
      expected.working.set(i, whole.working.get(i));
    }
  }
  for (const int num_threads : {1, 3}) {
    ThreadTeam team(num_threads);
    Group group(shape);
    update_group(group.state(), group.all_gradients(), spans, team);
    group.old_master = expected.old_master;
    EXPECT_TRUE(group.same_bits(expected)) << num_threads;
  }
}

TEST(AdamW, UnalignedArraysGiveTheSameBits) {
  const UpdateStep step = update_step_of(kSettings, 1);
  for (const std::size_t offset : {1U, 3U, 8U, 16U, 31U}) {
    for (const std::size_t size : {5U, 64U, 1001U}) {
      for (const DType working : kDTypes) {
        expect_header_arithmetic({.num_elements = size, .offset = offset, .working = working}, step);
      }
    }
  }
}

TEST(AdamW, GradientsOfATiedParameterAreAddedInOrder) {
  for (const std::size_t num_uses : {2U, 3U}) {
    for (const DType gradient : kDTypes) {
      expect_header_arithmetic({.num_elements = 999, .num_uses = num_uses, .gradient = gradient},
                               update_step_of(kSettings, 2));
    }
  }
}

TEST(AdamW, TheClippingFactorScalesTheSumOfTheGradients) {
  UpdateStep step = update_step_of(kSettings, 2);
  step.gradient_scale = 0.37F;
  expect_header_arithmetic({.num_elements = 999, .num_uses = 2}, step);
}

TEST(AdamW, ABeta1BelowOneHalfGoesTheOtherWayRound) {
  for (const double beta1 : {0.0, 0.3, 0.5}) {
    AdamW settings = kSettings;
    settings.beta1 = beta1;
    const UpdateStep step = update_step_of(settings, 1);
    EXPECT_TRUE(step.m_from_gradient);
    expect_header_arithmetic({.num_elements = 999}, step);
    Group group({.num_elements = 999});
    kPortableUpdateKernels.update(group.state(), group.all_gradients(), step, 0, 999);
    for (std::size_t i = 0; beta1 == 0 && i < 999; ++i) ASSERT_EQ(group.m.get(i), gradient_of(group, i));
  }
}

TEST(AdamW, TheMasterMayBeTheWorkingCopyAndMayMoveFromOneCopyToTheOther) {
  const UpdateStep step = update_step_of(kSettings, 4);
  for (const bool two_masters : {false, true}) {
    expect_header_arithmetic(
        {.num_elements = 999, .gradient = DType::kFloat32, .has_working = false, .two_masters = two_masters}, step);
  }
}

TEST(AdamW, AStepCountsItsCorrectionsFromOne) {
  const UpdateStep step = update_step_of(kSettings, 1);
  EXPECT_EQ(step.gradient_scale, 1.0F);
  EXPECT_EQ(step.decay, 0.999F);
  EXPECT_EQ(step.m_weight, 0.1F);
  EXPECT_EQ(step.v_weight, static_cast<float>(1.0 - 0.95));
  EXPECT_EQ(step.v_correction, static_cast<float>(std::sqrt(1.0 - 0.95)));
  EXPECT_EQ(step.step_size, static_cast<float>(-1e-2 / (1.0 - 0.9)));
}

TEST(AdamW, ASkippedStepRewritesTheWorkingCopyAndTheMasterAndNothingElse) {
  for (const DType working : kDTypes) {
    for (const bool two_masters : {false, true}) {
      for (const std::size_t size : {0U, 1U, 31U, 999U, 65'537U}) {
        const Shape shape{.num_elements = size, .working = working, .two_masters = two_masters};
        Group expected(shape);
        for (std::size_t i = 0; i < size; ++i) {
          expected.master.set(i, expected.old_master.get(i));
          expected.working.set(i, expected.old_master.get(i));
        }
        for (const UpdateKernels* kernels : usable_update_kernels()) {
          Group group(shape);
          kernels->skip(group.state(), 0, size);
          ASSERT_TRUE(group.working.same_bits(expected.working)) << text_of(*kernels, shape);
        }
        Group group(shape);
        ThreadTeam team(2);
        skip_group(group.state(), team);
        ASSERT_TRUE(group.same_bits(expected));
      }
    }
  }
}

TEST(AdamW, InfinityAndNanReachTheWorkingCopyInEveryInstructionSet) {
  for (const DType working : kDTypes) {
    for (const UpdateKernels* kernels : usable_update_kernels()) {
      Group group({.num_elements = 33, .working = working});
      group.gradients[0].set(0, std::numeric_limits<float>::quiet_NaN());
      group.gradients[0].set(1, std::numeric_limits<float>::infinity());
      group.master.set(2, -std::numeric_limits<float>::infinity());
      kernels->update(group.state(), group.all_gradients(), update_step_of(kSettings, 1), 0, 33);
      EXPECT_TRUE(std::isnan(group.working.get(0))) << kernels->name;
      EXPECT_TRUE(std::isnan(group.working.get(1))) << kernels->name;
      EXPECT_EQ(group.working.get(2), -std::numeric_limits<float>::infinity()) << kernels->name;
      EXPECT_TRUE(std::isfinite(group.working.get(3))) << kernels->name;
    }
  }
}

TEST(AdamW, ANanOfAnyPatternIsRoundedAsInTheScalarConversion) {
  for (const DType working : {DType::kBFloat16, DType::kFloat16}) {
    for (const UpdateKernels* kernels : usable_update_kernels()) {
      Group group({.num_elements = 64, .working = working});
      for (std::uint32_t i = 0; i < 64; ++i) {
        const std::uint32_t payload = i < 23 ? 1U << i : i < 46 ? 0x7fffffU >> (i - 23) : 0x7fffffU - (i - 46);
        const std::uint32_t bits = (i % 2 == 0 ? 0x7f800000U : 0xff800000U) | payload;
        std::memcpy(group.master.floats() + i, &bits, sizeof bits);
      }
      kernels->skip(group.state(), 0, 64);
      for (std::size_t i = 0; i < 64; ++i) {
        const float nan = group.master.get(i);
        const std::uint16_t bits = static_cast<const std::uint16_t*>(group.working.data())[i];
        ASSERT_EQ(bits, working == DType::kBFloat16 ? bf16_from_float(nan) : fp16_from_float(nan)) << kernels->name;
      }
    }
  }
}

TEST(UpdateGroupDeathTest, NoPassTakesADTypeThatWorkersDoNotComputeIn) {
  std::vector<float> floats(64), sums(64);
  std::vector<double> lanes(kNumSquareLanes);
  const void* const use = floats.data();
  for (const UpdateKernels* kernels : usable_update_kernels()) {
    for (const DType dtype : {DType::kFloat64, DType::kInt16, DType::kBool}) {
      const GroupGradients gradients{.uses = &use, .num_uses = 1, .dtype = dtype, .num_elements = 16};
      const GroupState state{.old_master = floats.data(),
                             .master = sums.data(),
                             .working = sums.data(),
                             .working_dtype = dtype,
                             .num_elements = 16};
      EXPECT_DEATH(kernels->add(sums.data(), gradients, 0, 16), "dtype.*does not hold") << kernels->name;
      EXPECT_DEATH(kernels->squares(gradients, 0, 16, lanes.data()), "dtype.*does not hold") << kernels->name;
      EXPECT_DEATH(kernels->skip(state, 0, 16), "dtype.*does not hold") << kernels->name;
      EXPECT_DEATH(kernels->update(state, gradients, {.kind = UpdateKind::kPlain}, 0, 16), "dtype.*does not hold")
          << kernels->name;
    }
  }
}

TEST(UpdateRules, AgreeWithPyTorchToTheLastBitsOfFp32) {
  using namespace update_golden;
  ThreadTeam team(1);
  for (const Case& golden : kCases) {
    std::vector<float> p(kStart, kStart + kNumElements), m(kNumElements, 0.0F), v(kNumElements, 0.0F);
    const UpdateStep step_1 = update_step_of(golden.rule, 1);
    for (int t = 0; t < kNumSteps; ++t) {
      const void* uses[] = {kGradients + t * kNumElements};
      update_group({.old_master = p.data(), .master = p.data(), .m = m.data(), .v = v.data(), .num_elements = p.size()},
                   {.uses = uses, .num_uses = 1, .dtype = DType::kFloat32, .num_elements = p.size()},
                   update_step_of(golden.rule, t + 1), team);
    }
    for (std::size_t i = 0; i < p.size(); ++i) {
      const std::string place = std::string(golden.name) + ", element " + std::to_string(i);
      EXPECT_NEAR(p[i], golden.p[i], 2e-7 * std::fabs(golden.p[i])) << place;
      // If the weight decay or a new gradient cancels most of a sum, the tolerance must be relative
      // to the sum's terms.
      double terms = std::fabs(golden.m[i]);
      if (!std::holds_alternative<AdamW>(golden.rule)) terms += std::fabs(step_1.coupled_decay * kStart[i]);
      if (std::holds_alternative<Sgd>(golden.rule))
        terms += std::fabs(kGradients[4 * kNumElements + static_cast<int>(i)]);
      EXPECT_NEAR(m[i], golden.m[i], 4e-7 * terms) << place;
      EXPECT_NEAR(v[i], golden.v[i], 4e-7 * std::fabs(golden.v[i])) << place;
    }
  }
}

}  // namespace
}  // namespace rp
