#include "launcher/topology.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rp {
namespace {

TEST(Topology, EveryAllowedCpuOfThisMachineIsOnExactlyOneNode) {
  CpuList placed;
  for (const CpuList& node : cpus_by_node(allowed_cpus())) placed.insert(placed.end(), node.begin(), node.end());
  std::sort(placed.begin(), placed.end());
  EXPECT_EQ(placed, allowed_cpus());
}

TEST(Topology, WorkersAreSpreadOverTheNodesAndSplitTheirCores) {
  const std::vector<CpuList> nodes = {{0, 1, 2, 3}, {4, 5, 6, 7}};
  EXPECT_EQ(spread_workers(nodes, 4), (std::vector<CpuList>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(spread_workers(nodes, 2), nodes);
  EXPECT_EQ(spread_workers(nodes, 1).size(), 1U);
}

TEST(Topology, WorkersShareANodeThatHasFewerCoresThanWorkers) {
  EXPECT_EQ(spread_workers({{0, 1}}, 3), (std::vector<CpuList>{{0, 1}, {0, 1}, {0, 1}}));
}

TEST(Topology, EveryWorkerGetsAPlaceWhateverTheNumbers) {
  for (int num_workers = 1; num_workers <= 17; ++num_workers) {
    const std::vector<CpuList> places = spread_workers({{0, 1, 2}, {3}, {4, 5, 6, 7, 8}}, num_workers);
    ASSERT_EQ(places.size(), static_cast<std::size_t>(num_workers));
    for (const CpuList& place : places) EXPECT_FALSE(place.empty());
  }
}

}  // namespace
}  // namespace rp
