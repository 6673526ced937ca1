#include "optimizer/update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/float16.h"
#include "kernels/cpu/update_kernels.h"
#include "tests/common/random_floats.h"
#include "tests/optimizer/update_golden.h"

namespace rp {
namespace {

constexpr std::array<DType, 3> kDTypes = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
constexpr AdamW kSettings = {.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};

// An array of `num_elements` numbers of a format. The first one is `offset` elements after the
// beginning of a 64-byte line.
class Numbers {
 public:
  Numbers(DType dtype, std::size_t num_elements, std::size_t offset)
      : dtype_(dtype),
        num_bytes_(num_elements * dtype_bytes(dtype)),
        start_(offset * dtype_bytes(dtype)),
        lines_((start_ + num_bytes_) / sizeof(Line) + 1) {}

  [[nodiscard]] void* data() { return lines_.data()->bytes.data() + start_; }
  [[nodiscard]] const void* data() const { return lines_.data()->bytes.data() + start_; }
  [[nodiscard]] float* floats() { return static_cast<float*>(data()); }
  void set(std::size_t i, float x) {
    if (dtype_ == DType::kFloat32) {
      floats()[i] = x;
    } else {
      static_cast<std::uint16_t*>(data())[i] = dtype_ == DType::kBFloat16 ? bf16_from_float(x) : fp16_from_float(x);
    }
  }
  [[nodiscard]] float get(std::size_t i) const {
    if (dtype_ == DType::kFloat32) return static_cast<const float*>(data())[i];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(data())[i];
    return dtype_ == DType::kBFloat16 ? float_from_bf16(bits) : float_from_fp16(bits);
  }
  [[nodiscard]] bool same_bits(const Numbers& other) const {
    return std::memcmp(data(), other.data(), num_bytes_) == 0;
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  DType dtype_;
  std::size_t num_bytes_;
  std::size_t start_;
  std::vector<Line> lines_;
};

struct Shape {
  std::size_t num_elements = 0;
  std::size_t offset = 0;
  std::size_t num_uses = 1;
  DType gradient = DType::kBFloat16;
  DType working = DType::kBFloat16;
  bool has_working = true;
  bool two_masters = false;
};

// A weight group with numbers of many magnitudes, including zeros and denormals, from a fixed seed.
struct Group {
  explicit Group(const Shape& its_shape)
      : shape(its_shape),
        old_master(DType::kFloat32, shape.num_elements, shape.offset),
        master(old_master),
        m(old_master),
        v(old_master),
        working(shape.working, shape.num_elements, shape.offset) {
    std::mt19937 random(static_cast<unsigned>(shape.num_elements * 64 + shape.offset));
    NormalFloats normal;
    UniformFloats exponent(-30, 10);
    const auto number = [&] {
      const auto kind = random() % 16;
      return kind == 0 ? 0.0F : kind == 1 ? -0.0F : normal(random) * std::exp2(exponent(random));
    };
    for (std::size_t use = 0; use < shape.num_uses; ++use) {
      gradients.emplace_back(shape.gradient, shape.num_elements, shape.offset);
      for (std::size_t i = 0; i < shape.num_elements; ++i) gradients.back().set(i, number());
    }
    for (std::size_t i = 0; i < shape.num_elements; ++i) {
      old_master.set(i, number());
      m.set(i, i % 9 == 0 ? 1e-41F : number());
      v.set(i, std::fabs(number()));
      master.set(i, shape.two_masters ? -7.0F : old_master.get(i));
    }
  }

  GroupGradients all_gradients() {
    uses.clear();
    for (Numbers& gradient : gradients) uses.push_back(gradient.data());
    return {.uses = uses.data(), .num_uses = uses.size(), .dtype = shape.gradient, .num_elements = shape.num_elements};
  }
  GroupState state() {
    return {.old_master = shape.two_masters ? old_master.floats() : master.floats(),
            .master = master.floats(),
            .m = m.floats(),
            .v = v.floats(),
            .working = shape.has_working ? working.data() : nullptr,
            .working_dtype = shape.working,
            .num_elements = shape.num_elements};
  }
  [[nodiscard]] bool same_bits(const Group& other) const {
    return old_master.same_bits(other.old_master) && master.same_bits(other.master) && m.same_bits(other.m) &&
           v.same_bits(other.v) && working.same_bits(other.working);
  }

  Shape shape;
  std::vector<Numbers> gradients;
  Numbers old_master, master, m, v, working;
  std::vector<const void*> uses;
};

float gradient_of(const Group& group, std::size_t i) {
  float g = 0;
  for (const Numbers& gradient : group.gradients) g = g + gradient.get(i);
  return g;
}

// Does literally what kernels/update_arguments.h defines.
void update_by_the_header(Group& group, const UpdateStep& s) {
  for (std::size_t i = 0; i < group.shape.num_elements; ++i) {
    float g = gradient_of(group, i) * s.gradient_scale;
    float p = group.old_master.get(i);
    float m = group.m.get(i);
    float v = group.v.get(i);
    if (s.clips_values && !std::isnan(g)) g = std::max(-s.max_value, std::min(s.max_value, g));
    if (s.couples_decay) g = g + s.coupled_decay * p;
    switch (s.kind) {
      case UpdateKind::kAdam:
        p = p * s.decay;
        m = (s.m_from_gradient ? g : m) + s.m_weight * (g - m);
        v = v * s.beta2 + (s.v_weight * g) * g;
        p = p + (s.step_size * m) / (std::sqrt(v) / s.v_correction + s.epsilon);
        break;
      case UpdateKind::kMomentum:
        m = m * s.m_decay + s.m_weight * g;
        p = p + s.step_size * (s.nesterov ? g + s.nesterov_weight * m : m);
        break;
      case UpdateKind::kPlain: p = p + s.step_size * g; break;
    }
    group.master.set(i, p);
    group.m.set(i, m);
    group.v.set(i, v);
    if (group.shape.has_working) group.working.set(i, p);
  }
}

std::string text_of(const UpdateKernels& kernels, const Shape& shape) {
  return std::string(kernels.name) + ", " + std::to_string(shape.num_elements) + " elements, offset " +
         std::to_string(shape.offset) + ", " + std::to_string(shape.num_uses) + " uses, formats " +
         std::to_string(static_cast<int>(shape.gradient)) + " " + std::to_string(static_cast<int>(shape.working));
}

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

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all(71);
  std::iota(all.begin(), all.end(), std::size_t{0});
  all.insert(all.end(), {127, 1023, 4097, 65'537});
  return all;
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

TEST(SumOfSquares, NanAndInfinityAreKept) {
  ThreadTeam team(2);
  Group group({.num_elements = 100'000});
  group.gradients[0].set(70'000, std::numeric_limits<float>::infinity());
  EXPECT_EQ(sum_of_squares(group.all_gradients(), team), std::numeric_limits<double>::infinity());
  group.gradients[0].set(5, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(sum_of_squares(group.all_gradients(), team)));
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
