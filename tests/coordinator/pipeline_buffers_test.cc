#include "coordinator/rounds/pipeline_buffers.h"

#include "tests/worker/worker_harness.h"

namespace rp::test {
namespace {

constexpr BlockRow kRow{BlockKind::kBuffers, 0};

class PipelineBuffersTest : public testing::Test {
 protected:
  std::shared_ptr<Round> round(RoundMode mode) {
    auto result = std::make_shared<Round>();
    result->traits.mode = mode;
    result->num_layers = 2;
    inputs_.place_table(*result);
    return result;
  }
  // Returns the round of the initial buffers, whose only reader is `buffers_`.
  std::shared_ptr<Round> initial() {
    auto result = round(RoundMode::kTrain);
    inputs_.place({.tensors = {float_tensor(values_)}}, store_->round_table(*result), kRow.kind, kRow.index, 0);
    result->move_to(RoundState::kDone);
    buffers_.set(0, {result, kRow});
    return result;
  }
  // Does what the acceptance of a round does.
  void enter(const std::shared_ptr<Round>& round) {
    for (const BlockOfRound& old : buffers_.enter(round)) blocks_.release(old);
  }
  // Returns true if the table is freed: a round that is done loses its table with its last block.
  static bool is_freed(const Round& round) { return round.table_bytes == 0; }

  const std::vector<float> values_ = {1, 2, 3};
  std::unique_ptr<Store> store_ = two_layer_store({.num_buffers = 1});
  InputBlocks inputs_{*store_};
  FreeSender frees_{*store_};
  RoundBlocks blocks_{*store_, inputs_, frees_};
  PipelineBuffers buffers_{blocks_};
};

TEST_F(PipelineBuffersTest, LiveUntilAStepEndsTheRoundThatMadeNewerOnes) {
  const auto first = initial();
  const auto next = round(RoundMode::kTrain);
  enter(next);
  EXPECT_EQ(next->origins.at(kRow).round, first);
  EXPECT_EQ(buffers_.newest().at(0).round, next);
  EXPECT_EQ(buffers_.of_step().at(0).round, first) << "a round that no step has ended may be thrown away";
  EXPECT_FALSE(is_freed(*first));
  buffers_.end_step();
  EXPECT_EQ(buffers_.of_step().at(0).round, next);
  EXPECT_TRUE(is_freed(*first));
}

TEST_F(PipelineBuffersTest, AreReadByAnEvaluationAndNotMade) {
  const auto first = initial();
  const auto evaluation = round(RoundMode::kEvaluate);
  enter(evaluation);
  EXPECT_EQ(evaluation->origins.at(kRow).round, first);
  EXPECT_EQ(buffers_.newest().at(0).round, first);
  EXPECT_FALSE(is_freed(*first));
}

TEST_F(PipelineBuffersTest, AreReplacedAtOnceByWhatIsSet) {
  const auto first = initial();
  const auto second = initial();
  EXPECT_TRUE(is_freed(*first));
  EXPECT_FALSE(is_freed(*second));
  EXPECT_EQ(buffers_.newest().at(0).round, second);
  EXPECT_EQ(buffers_.of_step().at(0).round, second);
}

}  // namespace
}  // namespace rp::test
