#include "train/output/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/system/clock.h"
#include "train/output/step_clock.h"
#include "train/output/wrapped_text.h"

namespace rp {
namespace {

using ::testing::HasSubstr;

StepReport example() {
  StepReport report;
  report.step = 12;
  report.loss = 1.84671;
  report.grad_norm = 0.8124;
  report.learning_rate = 1e-5;
  report.tokens_per_second = 1234.4;
  report.busy = 0.934;
  report.host_bytes = std::uint64_t{31} << 30;
  report.eta_seconds = 249.2;
  return report;
}

TEST(StepLine, HasTheNumbersThatPeopleExpect) {
  EXPECT_EQ(
      step_line(example(), 60),
      "step 12/60  loss 1.8467  grad norm 0.812  lr 1.00e-05  1234 tokens/s  busy 93 %  host 31.0 GiB  eta 0:04:10");
}

TEST(LoadingText, SaysHowFarAndForHowLong) {
  EXPECT_EQ(loading_text(12, 61, 33.2), "loading weights  12/61 layers  0:00:34");
}

TEST(StepLine, LeavesOutWhatDoesNotFitTheLeastImportantFirst) {
  EXPECT_EQ(step_line(example(), 60, 100),
            "step 12/60  loss 1.8467  grad norm 0.812  1234 tokens/s  busy 93 %  host 31.0 GiB  eta 0:04:10");
  EXPECT_EQ(step_line(example(), 60, 80),
            "step 12/60  loss 1.8467  grad norm 0.812  1234 tokens/s  busy 93 %  eta 0:04:10");
  EXPECT_EQ(step_line(example(), 60, 40), "step 12/60  loss 1.8467  eta 0:04:10");
  EXPECT_EQ(step_line(example(), 60, 1), "step 12/60");
}

TEST(Wrapped, BreaksBetweenWordsAndNoWord) {
  EXPECT_EQ(wrapped("", "a bc def", 2, 4), "a bc\n  def\n");
  EXPECT_EQ(wrapped("name ", "a-word-that-is-too-long b", 1, 8), "name a-word-that-is-too-long\n b\n");
  EXPECT_EQ(wrapped("", "", 2, 4), "\n");
}

TEST(StepLine, NumbersOfDifferentLengthStayInTheirColumns) {
  StepReport report = example();
  report.step = 7;
  report.grad_norm = 4e-5;
  EXPECT_THAT(step_line(report, 1000), ::testing::StartsWith("step    7/1000  loss 1.8467  grad norm 4.00e-05"));
}

TEST(StepLine, SaysWhenItDoesNotKnowYetHowBusyTheWorkersAre) {
  StepReport report = example();
  report.busy = 0;
  EXPECT_THAT(step_line(report, 60), HasSubstr("tokens/s  busy ?  host"));
}

TEST(BarLine, NeverWrapsWhateverTheWidth) {
  for (int width = 1; width <= 200; ++width) {
    EXPECT_LT(bar_line(example(), 60, width).size(), static_cast<std::size_t>(std::max(width, 2))) << width;
  }
  EXPECT_THAT(bar_line(example(), 60, 80), HasSubstr("eta 0:04:10 [####....................]"));
}

TEST(BarLine, IsFullAtTheLastStep) {
  StepReport report = example();
  report.step = 60;
  EXPECT_THAT(bar_line(report, 60, 120), HasSubstr("[########################]"));
}

TEST(DurationText, HasHoursMinutesSeconds) {
  EXPECT_EQ(duration_text(0), "0:00:00");
  EXPECT_EQ(duration_text(59.5), "0:01:00");
  EXPECT_EQ(duration_text(100 * 3600 + 61), "100:01:01");
}

TEST(StepClock, ForgetsTheFirstStepOnceThereAreOthers) {
  StepClock clock(0);
  EXPECT_EQ(clock.seconds_for(5), 0);
  EXPECT_EQ(clock.on_step(10 * kNsPerSecond), 10);
  EXPECT_EQ(clock.seconds_for(5), 50);
  EXPECT_EQ(clock.on_step(12 * kNsPerSecond), 2);
  EXPECT_EQ(clock.seconds_for(5), 10);
}

TEST(StepClock, FollowsTheLastStepsOnly) {
  StepClock clock(0);
  std::int64_t now = 0;
  for (int i = 0; i < 30; ++i) (void)clock.on_step(now += kNsPerSecond);
  for (int i = 0; i < 20; ++i) (void)clock.on_step(now += 3 * kNsPerSecond);
  EXPECT_EQ(clock.seconds_for(2), 6);
}

}  // namespace
}  // namespace rp
