#include "nodes/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "roundpipe/error.h"
#include "tests/nodes/local_network.h"

namespace rp::test {
namespace {

// Returns what each node gets, or the error's text.
std::vector<std::string> compare(const std::vector<NodeDescription>& nodes) {
  LocalNetwork network(static_cast<int>(nodes.size()), {});
  std::vector<std::string> results(nodes.size());
  std::vector<std::thread> threads;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    threads.emplace_back([&, node] {
      try {
        for (const int workers : compare_nodes(network.node(static_cast<int>(node)), nodes[node]))
          results[node] += std::to_string(workers) + " ";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kUserError);
        results[node] = error.what();
      }
      network.node(static_cast<int>(node)).finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

NodeDescription node(const std::string& host, int workers, const std::string& seed) {
  return {.host = host, .num_workers = workers, .same = {{"the build", "7"}, {"the seed", seed}}};
}

TEST(CompareNodes, TellsEachNodeTheWorkersOfAll) {
  std::vector<NodeDescription> nodes;
  std::string workers;
  for (int i = 0; i < 23; ++i) {
    nodes.push_back(node("a", i + 1, "1"));
    workers += std::to_string(i + 1) + " ";
    EXPECT_EQ(compare(nodes), std::vector<std::string>(nodes.size(), workers));
  }
}

TEST(CompareNodes, NamesTheNodeAndWhatDiffers) {
  for (const std::string& text : compare({node("a", 1, "1"), node("b", 1, "1"), node("c", 1, "2")})) {
    EXPECT_THAT(text, testing::HasSubstr("the seed is 2 on node 2 (c), and 1 on node 0 (a)"));
  }
  // Of several, the first one.
  std::vector<NodeDescription> nodes(16, node("a", 1, "1"));
  nodes[6] = node("b", 1, "2");
  nodes[7] = node("c", 1, "3");
  nodes[9] = node("d", 1, "4");
  for (const std::string& text : compare(nodes))
    EXPECT_THAT(text, testing::HasSubstr("the seed is 2 on node 6 (b), and 1 on node 4 (a)"));
  NodeDescription longer = node("b", 1, "1");
  longer.same.emplace_back("more", "yes");
  EXPECT_THAT(compare({node("a", 1, "1"), longer})[0],
              testing::HasSubstr("more is yes on node 1 (b), and not set on node 0 (a)"));
}

}  // namespace
}  // namespace rp::test
