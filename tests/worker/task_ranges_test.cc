#include "worker/observers/task_ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/worker_harness.h"

namespace rp {
namespace {

using testing::ElementsAre;

class Lines : public ProfilerRanges {
 public:
  void push(const std::string& text) override {
    said.push_back(std::string(static_cast<std::size_t>(depth_++), ' ') + text);
  }
  void pop() override { --depth_; }
  [[nodiscard]] int depth() const { return depth_; }
  std::vector<std::string> said;

 private:
  int depth_ = 0;
};

TEST(TaskRanges, LieInEachOtherAndEndInTheirOrder) {
  Lines lines;
  TaskRanges ranges(&lines);
  {
    const auto task = ranges.task({.phase = Phase::kFused, .round = 7, .step = 4, .first_layer = 0, .end_layer = 3});
    {
      const auto microbatch = ranges.microbatch(0, false);
      ranges.layer(0);
      ranges.layer(1);
      ranges.layer(-1);
      EXPECT_EQ(lines.depth(), 3);
    }
    EXPECT_EQ(lines.depth(), 1);
    const auto microbatch = ranges.microbatch(1, true);
  }
  EXPECT_EQ(lines.depth(), 0);
  EXPECT_THAT(lines.said, ElementsAre("fused of layers 0-2, pipeline 0, round 7, step 4", " microbatch 0", "  layer 0",
                                      "  layer 1", "  loss", " recompute of microbatch 1"));
}

TEST(TaskRanges, OfAWorkerAreItsTasksAndTheirMicrobatches) {
  Lines lines;
  TaskRanges ranges(&lines);
  test::ServedWorker worker({}, nullptr, &ranges);
  worker.start();
  worker.push(test::forward_command());
  worker.table.source(BlockKind::kActivation, 1) = {.worker = 0, .first_event = EventInEpoch(0)};
  worker.push(test::fused_command());
  RingReader<Completion> completions = worker.store->completion_reader(0);
  Completion completion;
  for (int task = 0; task < 2; ++task) {
    ASSERT_EQ(completions.wait(kLong), WaitResult::kReached);
    ASSERT_TRUE(completions.try_pop(completion));
  }
  worker.finish();
  EXPECT_EQ(lines.depth(), 0);
  EXPECT_THAT(lines.said,
              ElementsAre("forward of layers 0-0, pipeline 0, round 0, step 0", " microbatch 0", " microbatch 1",
                          "fused of layers 1-1, pipeline 0, round 0, step 0", " microbatch 0", " microbatch 1"));
}

TEST(TaskRanges, EndWithAnExceptionToo) {
  Lines lines;
  TaskRanges ranges(&lines);
  try {
    const auto task = ranges.task({});
    const auto microbatch = ranges.microbatch(0, false);
    ranges.layer(0);
    throw 1;
  } catch (int) {}
  EXPECT_EQ(lines.depth(), 0);
}

TEST(TaskRanges, WithoutAProfilerAreNothing) {
  TaskRanges ranges;
  const auto task = ranges.task({});
  ranges.layer(0);
}

}  // namespace
}  // namespace rp
