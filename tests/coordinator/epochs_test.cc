#include "coordinator/rounds/epochs.h"

#include <gtest/gtest.h>

#include "tests/worker/worker_harness.h"

namespace rp::test {
namespace {

class EpochsTest : public testing::Test {
 protected:
  void acknowledge(int worker) { store_->worker_words(worker).acknowledged.publish(epochs_.epoch().value() + 1); }

  std::unique_ptr<Store> store_ = two_layer_store({});
  Epochs epochs_{*store_};
};

TEST_F(EpochsTest, TheFirstHasBegunWithAllWorkers) {
  EXPECT_EQ(store_->epoch().observe(), (EpochState{.epoch = Epoch(0), .has_begun = true}));
  for (const int worker : {0, 1}) EXPECT_EQ(store_->worker_words(worker).takes_part, 1U);
  EXPECT_FALSE(epochs_.is_changing());
}

TEST_F(EpochsTest, TheNextBeginsWhenAllSurvivorsHaveStopped) {
  store_->worker_words(1).events.publish(EventInEpoch(Epoch(0), EventNumber(7)));
  epochs_.lose(1);
  EXPECT_TRUE(epochs_.is_changing());
  EXPECT_EQ(store_->epoch().observe(), (EpochState{.epoch = Epoch(1), .has_begun = false}));
  EXPECT_EQ(store_->worker_words(1).events.observe().epoch(), Epoch(1)) << "no device waits for the dead worker";
  EXPECT_EQ(epochs_.missing(), 0);
  acknowledge(0);
  EXPECT_EQ(epochs_.missing(), std::nullopt);
  ASSERT_EQ(epochs_.ready(), std::vector<int>{0});
  epochs_.begin({0});
  EXPECT_EQ(store_->epoch().observe(), (EpochState{.epoch = Epoch(1), .has_begun = true}));
  EXPECT_EQ(store_->worker_words(0).takes_part, 2U);
  EXPECT_EQ(store_->worker_words(1).takes_part, 1U);
}

TEST_F(EpochsTest, AReplacementJoinsAtAnotherChange) {
  epochs_.lose(1);
  acknowledge(0);
  epochs_.begin({0});
  epochs_.admit_ready();
  EXPECT_FALSE(epochs_.is_changing()) << "worker 1 is not ready";
  acknowledge(1);
  epochs_.admit_ready();
  ASSERT_TRUE(epochs_.is_changing());
  EXPECT_EQ(epochs_.epoch(), Epoch(2));
  EXPECT_TRUE(epochs_.missing().has_value());
  acknowledge(0);
  EXPECT_EQ(epochs_.missing(), 1) << "the one that joins must stop waiting for the last epoch";
  acknowledge(1);
  EXPECT_EQ(epochs_.ready(), (std::vector<int>{0, 1}));
}

TEST_F(EpochsTest, AReplacementThatDiesBeforeItIsReadyEndsNoEpoch) {
  epochs_.lose(1);
  acknowledge(0);
  epochs_.begin({0});
  epochs_.lose(1);
  EXPECT_FALSE(epochs_.is_changing());
  EXPECT_EQ(epochs_.epoch(), Epoch(1));
}

TEST_F(EpochsTest, ASurvivorThatDiesDuringAChangeIsNotWaitedFor) {
  epochs_.lose(1);
  epochs_.lose(0);
  EXPECT_EQ(epochs_.epoch(), Epoch(2));
  EXPECT_EQ(epochs_.missing(), std::nullopt);
  EXPECT_TRUE(epochs_.ready().empty());
}

}  // namespace
}  // namespace rp::test
