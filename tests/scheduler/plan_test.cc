#include "scheduler/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_THAT(error_of("0-3 fused 4-7", 8), HasSubstr("stands before"));
  EXPECT_THAT(error_of("", 8), HasSubstr("it is empty"));
  EXPECT_THAT(error_of("forward 0-3", 8), HasSubstr("forward stages end before layer 4, and there is no fused stage"));
  EXPECT_THAT(error_of("forward 3-0 | fused 4-7 | backward 0-3", 8), HasSubstr("is empty"));
}

}  // namespace
}  // namespace rp
