#include "coordinator/exchange/round_group.h"

#include <gtest/gtest.h>

#include "roundpipe/error.h"

namespace rp {
namespace {

TEST(RoundGroup, ARoundOfEachNodeBelongsToIt) {
  RoundGroup group(3);
  EXPECT_FALSE(group.is_open());
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t before = group.count_round(0, false);
    const std::uint64_t first = group.count_round(0, true);
    const std::uint64_t evaluation = group.count_round(1, false);
    const std::uint64_t second = group.count_round(0, true);
    EXPECT_TRUE(group.is_open());
    EXPECT_NO_THROW(group.check_wait(before, "waiting"));
    for (const std::uint64_t call : {first, evaluation, second}) EXPECT_THROW(group.check_wait(call, "waiting"), Error);
    EXPECT_THROW(group.check_complete("waiting"), Error);
    const std::uint64_t last = group.count_round(0, true);
    EXPECT_FALSE(group.is_open());
    for (const std::uint64_t call : {first, evaluation, second, last})
      EXPECT_NO_THROW(group.check_wait(call, "waiting"));
    EXPECT_NO_THROW(group.check_complete("waiting"));
  }
}

// Nodes would exchange the gradients of different pipelines with each other.
TEST(RoundGroup, HasRoundsOfOnePipeline) {
  RoundGroup group(2);
  group.count_round(0, true);
  try {
    group.count_round(1, true);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_STREQ(error.what(),
                 "forward_backward() of pipeline 1 after 1 of 2 rounds that the 2 nodes compute together (--reduce "
                 "nccl): first call forward_backward() of pipeline 0 1 more time, or use --reduce mpi");
  }
  group.count_round(0, true);
  group.count_round(1, true);
  EXPECT_TRUE(group.is_open());
}

TEST(RoundGroup, RefusesNothingIfWorkersDoNotExchange) {
  RoundGroup group(1);
  for (const int pipeline : {0, 1, 0}) {
    const std::uint64_t call = group.count_round(pipeline, true);
    EXPECT_NO_THROW(group.check_wait(call, "waiting"));
    EXPECT_NO_THROW(group.check_complete("waiting"));
  }
}

}  // namespace
}  // namespace rp
