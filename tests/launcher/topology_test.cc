#include "launcher/machine/topology.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rp {
namespace {

TEST(Topology, EveryAllowedCpuOfThisMachineIsOnExactlyOneNode) {
  CpuList placed;
  for (const NumaNode& node : numa_nodes(allowed_cpus()))
    placed.insert(placed.end(), node.cpus.begin(), node.cpus.end());
  std::sort(placed.begin(), placed.end());
  EXPECT_EQ(placed, allowed_cpus());
}

TEST(Topology, WorkersAreSpreadOverTheNodesAndSplitTheirCores) {
  const std::vector<NumaNode> nodes = {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}};
  EXPECT_EQ(spread_workers(nodes, 4), (std::vector<CpuList>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(spread_workers(nodes, 2), (std::vector<CpuList>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(spread_workers(nodes, 1).size(), 1U);
}

TEST(Topology, WorkersShareANodeThatHasFewerCoresThanWorkers) {
  EXPECT_EQ(spread_workers({{0, {0, 1}}}, 3), (std::vector<CpuList>{{0, 1}, {0, 1}, {0, 1}}));
}

TEST(Topology, EveryWorkerGetsAPlaceWhateverTheNumbers) {
  for (int num_workers = 1; num_workers <= 17; ++num_workers) {
    const std::vector<CpuList> places = spread_workers({{0, {0, 1, 2}}, {1, {3}}, {2, {4, 5, 6, 7, 8}}}, num_workers);
    ASSERT_EQ(places.size(), static_cast<std::size_t>(num_workers));
    for (const CpuList& place : places) EXPECT_FALSE(place.empty());
  }
}

TEST(Topology, WorkersOnGpusSplitTheCoresOfTheirGpusNode) {
  const std::vector<NumaNode> nodes = {{0, {0, 1, 2, 3}}, {2, {4, 5, 6, 7}}};
  EXPECT_EQ(place_beside_gpus(nodes, {2, 0, 2}), (std::vector<CpuList>{{4, 5}, {0, 1, 2, 3}, {6, 7}}));
  EXPECT_EQ(place_beside_gpus(nodes, {0, 0, 0, 0, 0}), std::vector<CpuList>(5, {0, 1, 2, 3}))
      << "fewer cores than workers";
}

TEST(Topology, AWorkerWhoseGpusNodeIsUnknownOrHasNoCoreThatMayBeUsedIsNotBound) {
  const std::vector<NumaNode> nodes = {{0, {0, 1}}, {1, {2, 3}}};
  EXPECT_EQ(place_beside_gpus(nodes, {-1, 1, 7}), (std::vector<CpuList>{{}, {2, 3}, {}}));
  EXPECT_EQ(place_beside_gpus({{-1, {0, 1}}, {1, {2}}}, {-1}), std::vector<CpuList>{{}})
      << "two unknown nodes are not one";
  EXPECT_EQ(place_beside_gpus({{0, {0, 1}}}, {-1, 3}), (std::vector<CpuList>{{0}, {1}})) << "one node is everybody's";
}

TEST(Topology, CpusReadAsRanges) {
  EXPECT_EQ(cpu_text({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(cpu_text({}), "any");
}

}  // namespace
}  // namespace rp
