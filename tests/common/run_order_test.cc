#include "common/run_order.h"

#include <gtest/gtest.h>

#include "common/run_depth.h"

namespace rp {
namespace {

TEST(RunOrder, SlotsGoToTheWorkersInTurn) {
  EXPECT_EQ(worker_of_slot(0, 3), 0);
  EXPECT_EQ(worker_of_slot(5, 3), 2);
  EXPECT_EQ(worker_of_slot(6, 3), 0);
}

TEST(RunOrder, AsynchronousRoundsComputeWithoutTheLastStep) {
  EXPECT_EQ(steps_in_weights(5, /*asynchronous=*/false), 5U);
  EXPECT_EQ(steps_in_weights(5, /*asynchronous=*/true), 4U);
  EXPECT_EQ(steps_in_weights(0, /*asynchronous=*/true), 0U) << "there was no step";
}

TEST(RunDepth, AUserOfAPlaceWaitsForTheUserBeforeItOfTheSamePlace) {
  EXPECT_EQ(returned_before(0, 2), 0U);
  EXPECT_EQ(returned_before(1, 2), 0U);
  EXPECT_EQ(returned_before(2, 2), 1U);
  EXPECT_EQ(returned_before(7, 2), 6U);
  EXPECT_EQ(returned_before(7, 1), 7U);
}

TEST(RunDepth, AWorkerHasOneTaskAndThoseAhead) {
  EXPECT_TRUE(may_send_task(kTasksAhead));
  EXPECT_FALSE(may_send_task(kTasksAhead + 1));
  EXPECT_TRUE(may_begin_round(kRoundsInFlight - 1));
  EXPECT_FALSE(may_begin_round(kRoundsInFlight));
}

}  // namespace
}  // namespace rp
