#include "coordinator/updates/pending_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rp {
namespace {

// Two layers with a weight group of 8 elements each; if `tied`, one group with two uses.
class PendingStepTest : public testing::Test {
 protected:
  void use_model(bool tied = false) {
    std::vector<LayerRequest> layers(2, LayerRequest{.name = "l"});
    for (LayerRequest& layer : layers)
      layer.parameters.push_back({.name = "w", .shape = {8}, .tied_group = tied ? 0 : -1});
    catalogue_ = Catalogue::lay_out(layers, 1, false);
    groups_ = catalogue_.trained_groups(0);
  }
  PendingStep step(bool scales_loss = false, bool is_recorded = false) {
    return {Version(1), catalogue_, 0, groups_, scales_loss, is_recorded};
  }

  Catalogue catalogue_;
  std::vector<GroupId> groups_;
};

TEST_F(PendingStepTest, AGroupIsReadyOnceStepIsCalledAndItsLastHoldReleased) {
  use_model();
  PendingStep step = this->step();
  step.hold(GroupId(0));
  step.hold(GroupId(0));
  step.hold(GroupId(1));
  EXPECT_FALSE(step.release(GroupId(1))) << "step() was not called";
  step.call(Version(0), {.rules = {AdamW{}}});
  EXPECT_TRUE(step.can_update());
  EXPECT_EQ(step.take_ready(), GroupId(1));
  EXPECT_FALSE(step.can_update());
  EXPECT_FALSE(step.release(GroupId(0))) << "a task of it is not committed";
  EXPECT_TRUE(step.release(GroupId(0)));
  EXPECT_EQ(step.take_ready(), GroupId(0));
  EXPECT_EQ(step.num_ready(), 2U);
  EXPECT_TRUE(step.all_are_taken());
  step.set_squares_known();
  step.count_published();
  EXPECT_FALSE(step.is_complete());
  step.count_published();
  EXPECT_TRUE(step.is_complete());
}

TEST_F(PendingStepTest, ABarrierWaitsForAllGroups) {
  use_model();
  for (const StepRequest& request :
       {StepRequest{.rules = {AdamW{}}, .options = {.max_grad_norm = 1}},
        StepRequest{.rules = {AdamW{}}, .options = {.skip_nonfinite = true}},
        StepRequest{.rules = {}, .function = [](Version, bool, const GradientWriter&) {}}}) {
    PendingStep step = this->step();
    step.hold(GroupId(0));
    step.hold(GroupId(1));
    step.call(Version(0), request);
    EXPECT_TRUE(step.release(GroupId(1)));
    EXPECT_FALSE(step.can_update());
    EXPECT_TRUE(step.release(GroupId(0)));
    EXPECT_TRUE(step.can_update());
    EXPECT_EQ(step.take_ready(), GroupId(0)) << "in layer order, whichever came first";
  }
  EXPECT_TRUE(step(true).is_barrier()) << "the scale of the loss";
  EXPECT_FALSE(step().is_barrier());
}

TEST_F(PendingStepTest, ATiedGroupHasTheGradientsOfAllItsUses) {
  use_model(true);
  PendingStep step = this->step();
  ASSERT_EQ(groups_.size(), 1U);
  step.set_gradient({.use = UseId(1), .released_after = 5});
  step.set_gradient({.use = UseId(1), .released_after = 6});
  step.set_gradient({.use = UseId(0), .released_after = 6});
  const std::vector<CommittedGradient> gradients = step.gradients_of(GroupId(0));
  ASSERT_EQ(gradients.size(), 2U);
  for (const CommittedGradient& gradient : gradients) EXPECT_EQ(gradient.released_after, 6U) << "of the last round";
  const ElementRange whole{.begin = 0, .end = catalogue_.weight_groups()[GroupId(0)].num_elements};
  EXPECT_FALSE(step.is_next(UseId(0), 1, whole));
  EXPECT_TRUE(step.is_next(UseId(0), 0, whole));
  step.add(UseId(0), whole);
  EXPECT_TRUE(step.is_next(UseId(0), 1, whole));
  EXPECT_TRUE(step.is_next(UseId(1), 0, whole)) << "each use has a sum of its own";
}

TEST_F(PendingStepTest, AStepWithAGradientThatIsNotFiniteSaysWhereAndHasNoRules) {
  use_model();
  PendingStep step = this->step(true);
  step.call(Version(0), {.rules = {AdamW{}}});
  step.set_square_sum(GroupId(0), 4);
  step.set_square_sum(GroupId(1), std::numeric_limits<double>::infinity());
  step.finish_norm(1024);
  EXPECT_TRUE(step.outcome()->skipped);
  EXPECT_EQ(step.outcome()->nonfinite_layers, std::vector<int>{1});
  EXPECT_TRUE(step.rules_of(GroupId(0), 1).empty());
}

TEST_F(PendingStepTest, ACorrectionHasARuleOfItsOwnAndIsInNoNorm) {
  catalogue_ = Catalogue::lay_out(
      {{.name = "l", .parameters = {{.name = "w", .shape = {8}}, {.name = "c", .shape = {5}, .is_correction = true}}}},
      1, false);
  groups_ = catalogue_.trained_groups(0);
  PendingStep step = this->step(true);
  step.call(Version(0), {.rules = {AdamW{.weight_decay = 0.1}},
                         .options = {.max_grad_norm = 1, .max_grad_value = 0.5, .router_bias_update_rate = 0.25}});
  step.set_square_sum(GroupId(0), 4);
  step.set_square_sum(GroupId(1), 1e9);
  step.finish_norm(2);
  EXPECT_EQ(step.outcome()->grad_norm, 1);
  const std::vector<UpdateSpan> rules = step.rules_of(GroupId(1), 1);
  ASSERT_EQ(rules.size(), 1U);
  EXPECT_EQ(rules[0].end, 5U);
  EXPECT_EQ(rules[0].step.step_size, -0.25F);
  EXPECT_EQ(rules[0].step.gradient_scale, 1);
  EXPECT_FALSE(rules[0].step.clips_values);
  EXPECT_FALSE(rules[0].step.couples_decay);
}

TEST_F(PendingStepTest, ClippingAndLossScalingAreOneFactor) {
  use_model();
  PendingStep step = this->step(true);
  step.call(Version(0), {.rules = {AdamW{}}, .options = {.max_grad_norm = 1, .max_grad_value = 0.5}});
  step.set_square_sum(GroupId(0), 4);
  step.set_square_sum(GroupId(1), 12);
  step.finish_norm(2);
  EXPECT_TRUE(step.norm_is_known());
  EXPECT_EQ(step.outcome()->grad_norm, 2) << "the scale is taken out";
  const std::vector<UpdateSpan> rules = step.rules_of(GroupId(1), 1);
  ASSERT_EQ(rules.size(), 1U);
  EXPECT_EQ(rules[0].end, catalogue_.weight_groups()[GroupId(1)].num_elements);
  EXPECT_EQ(rules[0].step.gradient_scale, static_cast<float>(0.5 * (1 / (2 + 1e-6))));
  EXPECT_TRUE(rules[0].step.clips_values);
  EXPECT_EQ(rules[0].step.max_value, 0.5F);
}

}  // namespace
}  // namespace rp
