#include "nodes/measurement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <thread>

#include "common/system/clock.h"
#include "tests/nodes/local_network.h"

namespace rp::test {
namespace {

MeasurementSettings quick() {
  return {.seconds_per_link = 0.02, .max_bytes_per_link = std::uint64_t{32} << 20, .limit_seconds = 20};
}

// Returns what node 0 measures. `ahead_seconds`: of the clock of each node. Nodes from `num_that_answer` do nothing.
NodesMeasurement measure(const std::vector<double>& ahead_seconds, MeasurementSettings settings, int num_that_answer) {
  LocalNetwork network(static_cast<int>(ahead_seconds.size()), {});
  std::optional<NodesMeasurement> result;
  std::vector<std::thread> threads;
  for (int node = 0; node < num_that_answer; ++node) {
    threads.emplace_back([&, node] {
      MeasurementSettings own = settings;
      const auto ahead_ns = static_cast<std::int64_t>(ahead_seconds[static_cast<std::size_t>(node)] * 1e9);
      own.clock = [ahead_ns] { return now_ns() + ahead_ns; };
      const auto measured = measure_nodes(network.node(node), own);
      EXPECT_EQ(measured.has_value(), node == 0);
      if (measured) result = measured;
      if (num_that_answer == static_cast<int>(ahead_seconds.size())) network.node(node).finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int node = 0; node < num_that_answer; ++node) network.node(node).stop();
  return result.value_or(NodesMeasurement{});
}

TEST(MeasureNodes, FindsHowFarEachClockIsAheadOfTheFirst) {
  const std::vector<double> ahead = {5, 5, -3.5, 65};
  const NodesMeasurement measured = measure(ahead, quick(), 4);
  ASSERT_EQ(measured.clocks.size(), ahead.size());
  for (std::size_t node = 0; node < ahead.size(); ++node) {
    const auto clock = measured.clocks[node];
    ASSERT_TRUE(clock) << node;
    EXPECT_LT(clock->uncertainty_seconds, 1) << node;
    EXPECT_NEAR(clock->seconds, ahead[node] - ahead[0], clock->uncertainty_seconds + 1e-6) << node;
  }
}

TEST(MeasureNodes, MeasuresEachPairOfNeighboursOnce) {
  for (const std::size_t num_nodes : {1, 2, 3, 4, 5}) {
    const NodesMeasurement measured = measure(std::vector<double>(num_nodes), quick(), static_cast<int>(num_nodes));
    ASSERT_EQ(measured.links.size(), num_nodes < 3 ? num_nodes - 1 : num_nodes);
    for (std::size_t i = 0; i < measured.links.size(); ++i) {
      const auto& link = measured.links[i];
      EXPECT_EQ(link.first, static_cast<int>(i));
      EXPECT_EQ(link.second, static_cast<int>((i + 1) % num_nodes));
      ASSERT_TRUE(link.speed) << i << " of " << num_nodes;
      EXPECT_EQ(link.speed->first, link.first);
      EXPECT_EQ(link.speed->second, link.second);
      EXPECT_GT(link.speed->latency_us, 0);
      EXPECT_GT(link.speed->gbs_to_first, 0);
      EXPECT_GT(link.speed->gbs_to_second, 0);
    }
  }
}

TEST(MeasureNodes, ANodeThatDoesNotAnswerLeavesOutItsOwnPairsOnly) {
  MeasurementSettings settings = quick();
  settings.limit_seconds = 2.5;
  const NodesMeasurement measured = measure(std::vector<double>(4), settings, 3);
  ASSERT_EQ(measured.links.size(), 4U);
  std::string answers;
  for (const auto& link : measured.links) answers += link.speed ? "+" : "-";
  EXPECT_EQ(answers, "++--");
  std::string clocks;
  for (const auto& clock : measured.clocks) clocks += clock ? "+" : "-";
  EXPECT_EQ(clocks, "+++-");
}

TEST(MeasureNodes, NoTurnHasANodeTwice) {
  for (int num_nodes = 1; num_nodes < 12; ++num_nodes) {
    int num_pairs = 0;
    const auto turns = turns_of_neighbours(num_nodes);
    EXPECT_LE(turns.size(), 3U);
    for (const auto& turn : turns) {
      std::set<int> nodes;
      for (const auto& [first, second] : turn) {
        EXPECT_EQ(second, (first + 1) % num_nodes);
        EXPECT_TRUE(nodes.insert(first).second && nodes.insert(second).second) << num_nodes;
        ++num_pairs;
      }
    }
    EXPECT_EQ(num_pairs, num_nodes < 3 ? num_nodes - 1 : num_nodes);
  }
}

}  // namespace
}  // namespace rp::test
