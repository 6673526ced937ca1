#include "scheduler/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "roundpipe/error.h"

namespace rp {
namespace {

using testing::HasSubstr;

std::string error_of(const std::string& text, int num_layers) {
  try {
    (void)parse_plan(text, num_layers);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "accepted";
}

TEST(Plan, ItsTextReadsBackAsTheSamePlan) {
  const Plan plan{.forward = {{0, 4}, {4, 6}}, .fused_start = 6, .backward = {{3, 6}, {0, 3}}};
  EXPECT_EQ(plan_text(plan, 8), "forward 0-3 4-5 | fused 6-7 | backward 3-5 0-2");
  EXPECT_EQ(parse_plan(plan_text(plan, 8), 8), plan);
  const Plan single{.forward = {}, .fused_start = 0, .backward = {}};
  EXPECT_EQ(parse_plan("# one stage\nfused: 0-7\n", 8), single);
}

TEST(Plan, ALongTextCountsStagesOfTheSameLength) {
  Plan plan{.forward = {}, .fused_start = 94, .backward = {}};
  for (int layer = 0; layer < 94; ++layer) {
    plan.forward.push_back({layer, layer + 1});
    plan.backward.insert(plan.backward.begin(), {layer, layer + 1});
  }
  EXPECT_EQ(plan_text(plan, 96), "forward 1x94 | fused 94-95 | backward 1x94");
  EXPECT_EQ(parse_plan("backward 1x94 | forward 1x94 | fused 94-95", 96), plan) << "in any order";
  const Plan mixed = parse_plan("forward 2x3 6 1x3 10-11 | fused 12-15 | backward 10-11 8-9 2x4", 16);
  EXPECT_EQ(mixed,
            parse_plan("forward 0-1 2-3 4-5 6 7 8 9 10-11 | fused 12-15 | backward 10-11 8-9 6-7 4-5 2-3 0-1", 16));
  EXPECT_EQ(plan_text(mixed, 16), "forward 2x3 1x4 10-11 | fused 12-15 | backward 2x6");
  EXPECT_EQ(plan_text(parse_plan("forward 0 1 | fused 2 | backward 0-1", 3), 3),
            "forward 0-0 1-1 | fused 2-2 | backward 0-1")
      << "two are no run";
}

TEST(Plan, EveryTextReadsBackAsTheSamePlan) {
  std::mt19937 random(7);
  const auto draw = [&random](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  for (int i = 0; i < 2000; ++i) {
    const int num_layers = 1 + draw(40), kind = draw(3);
    Plan plan{.forward = {}, .fused_start = kind == 0 ? draw(num_layers) : num_layers, .backward = {}};
    const int most = 1 + draw(4);
    for (int first = 0, end = 0; first < plan.fused_start; first = end) {
      end = std::min(plan.fused_start, first + 1 + draw(most));
      plan.forward.push_back({first, end});
    }
    for (int end = plan.fused_start, first = 0; kind < 2 && end > 0; end = first) {
      first = std::max(0, end - 1 - draw(most));
      plan.backward.push_back({first, end});
    }
    const std::string text = plan_text(plan, num_layers);
    ASSERT_EQ(parse_plan(text, num_layers), plan) << text;
  }
}

TEST(Plan, LengthsOfStagesReadBack) {
  EXPECT_EQ(lengths_text(std::vector<int>{2, 1, 1, 1, 8, 8, 0}), "2,1x3,8,8,0");
  EXPECT_EQ(parse_lengths("2,1x3,8,8,0", 7), (std::vector<int>{2, 1, 1, 1, 8, 8, 0}));
  EXPECT_EQ(parse_lengths("2,1x3,8,8,0", 6), std::nullopt) << "too many";
  for (const char* text : {"a", "1x", "x3", "-1", "1x-3", "2 3", "0x3", "1x99999999999999999999", "3,,3"}) {
    EXPECT_EQ(parse_lengths(text, 100), std::nullopt) << text;
  }
}

TEST(Plan, WithoutAFusedStageReadsBackToo) {
  const Plan train{.forward = {{0, 4}, {4, 8}}, .fused_start = 8, .backward = {{5, 8}, {0, 5}}};
  EXPECT_EQ(plan_text(train, 8), "forward 0-3 4-7 | backward 5-7 0-4");
  EXPECT_EQ(parse_plan(plan_text(train, 8), 8), train);
  const Plan infer{.forward = {{0, 8}}, .fused_start = 8, .backward = {}};
  EXPECT_EQ(plan_text(infer, 8), "forward 0-7");
  EXPECT_EQ(parse_plan(plan_text(infer, 8), 8), infer);
}

TEST(Plan, DoesForEveryKindOfRoundThatNeedsNoMoreThanItHas) {
  const Plan fused = parse_plan("forward 0-3 | fused 4-7 | backward 2-3 0-1", 8);
  EXPECT_EQ(plan_text(plan_for(PlanKind::kTrain, fused, 8), 8), "forward 0-3 4-7 | backward 4-7 2-3 0-1");
  EXPECT_EQ(plan_text(plan_for(PlanKind::kInfer, fused, 8), 8), "forward 0-3 4-7");
  const Plan train = plan_for(PlanKind::kTrain, fused, 8);
  EXPECT_EQ(plan_text(plan_for(PlanKind::kInfer, train, 8), 8), "forward 0-3 4-7");
  const auto refusal = [](PlanKind kind, const Plan& plan) {
    try {
      (void)plan_for(kind, plan, 8);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal(PlanKind::kFused, train), HasSubstr("needs a fused stage"));
  EXPECT_THAT(refusal(PlanKind::kTrain, plan_for(PlanKind::kInfer, train, 8)), HasSubstr("needs backward stages"));
}

TEST(Plan, EveryMistakeIsNamedWithItsLayer) {
  EXPECT_THAT(error_of("forward 0-3 5-6 | fused 7 | backward 0-6", 8), HasSubstr("layer 4 must begin"));
  EXPECT_THAT(error_of("forward 0-3 | fused 5-7 | backward 0-4", 8), HasSubstr("fused stage begins at layer 5"));
  EXPECT_THAT(error_of("forward 0-3 | fused 4-7 | backward 0-2", 8), HasSubstr("layer 3 must end"));
  EXPECT_THAT(error_of("forward 0-3 | fused 4-7 | backward 2-3", 8), HasSubstr("end at layer 2"));
  EXPECT_THAT(error_of("forward 0-3 | fused 4-6 | backward 0-3", 8), HasSubstr("last layer, 7"));
  EXPECT_THAT(error_of("forward 0-9 | fused 10-7 | backward 0-9", 8), HasSubstr("fused stage must begin"));
  EXPECT_THAT(error_of("forward a-b | fused 4-7", 8), HasSubstr("'a-b' is no range"));
  EXPECT_THAT(error_of("forward 0-2147483647 | fused 4-7", 8), HasSubstr("'0-2147483647' is no range"));
  EXPECT_THAT(error_of("forward 1x9 | fused 7 | backward 1x7", 8),
              HasSubstr("'1x9' stands for more layers than the 8 that are left from layer 0 on"));
  EXPECT_THAT(error_of("forward 1x4 | fused 4-7 | backward 2-3 1x2147483647", 8),
              HasSubstr("the 2 that are left below layer 2"));
  EXPECT_THAT(error_of("forward 1x4 | fused 2x2 | backward 1x4", 8), HasSubstr("'2x2' is no range"));
  for (const char* text : {"forward 0--2147483648 1x2 | fused 4-7", "backward 2147483646 1x2147483647 | fused 4-7",
                           "forward -2147483648 4x1 | fused 4-7"}) {
    EXPECT_THAT(error_of(text, 8), HasSubstr("the plan is wrong")) << text;
  }
  EXPECT_THAT(error_of("forward 2x | fused 4-7", 8),
              HasSubstr("'2x' is no range of layers such as 4-7, and no stages of the same length"));
  EXPECT_THAT(error_of("0-3 fused 4-7", 8), HasSubstr("stands before"));
  EXPECT_THAT(error_of("", 8), HasSubstr("it is empty"));
  EXPECT_THAT(error_of("forward 0-3", 8), HasSubstr("forward stages end before layer 4, and there is no fused stage"));
  EXPECT_THAT(error_of("forward 3-0 | fused 4-7 | backward 0-3", 8), HasSubstr("is empty"));
}

TEST(Plan, StagesComeInTheOrderOfSlotsWithoutBackwardBelowTheFirstTrainedLayer) {
  const Plan plan = parse_plan("forward 0-1 2 | fused 3-4 | backward 2 0-1", 5);
  const auto stages = [&plan](int first_trained_layer) {
    std::vector<std::pair<StageKind, LayerRange>> found;
    for (const PlanStage& stage : stages_of(plan, 5, first_trained_layer)) found.emplace_back(stage.kind, stage.layers);
    return found;
  };
  std::vector<std::pair<StageKind, LayerRange>> expected = {{StageKind::kForward, {0, 2}},
                                                            {StageKind::kForward, {2, 3}},
                                                            {StageKind::kFused, {3, 5}},
                                                            {StageKind::kBackward, {2, 3}},
                                                            {StageKind::kBackward, {0, 2}}};
  EXPECT_EQ(stages(0), expected);
  expected.back().second = {1, 2};
  EXPECT_EQ(stages(1), expected);
  expected.pop_back();
  EXPECT_EQ(stages(2), expected) << "a stage without trained layers is left out";
}

TEST(Plan, ABackwardStageReadsOneInputForEachPieceThatItRecomputes) {
  EXPECT_EQ(recompute_inputs({2, 5}, RecomputeGrain::kStage), (LayerRange{2, 3}));
  EXPECT_EQ(recompute_inputs({2, 5}, RecomputeGrain::kLayer), (LayerRange{2, 5}));
}

}  // namespace
}  // namespace rp
