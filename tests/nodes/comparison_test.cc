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
        for (const NodeDescription& other : compare_nodes(network.node(static_cast<int>(node)), nodes[node]))
          results[node] += other.host + ":" + std::to_string(other.num_workers) + " ";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kUserError);
        results[node] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

NodeDescription node(const std::string& host, int workers, const std::string& seed) {
  return {.host = host, .num_workers = workers, .same = {{"the build", "7"}, {"the seed", seed}}};
}

TEST(CompareNodes, TellsEachNodeTheHostsAndWorkersOfAll) {
  EXPECT_EQ(compare({node("a", 8, "1"), node("b", 4, "1"), node("c", 8, "1")}),
            std::vector<std::string>(3, "a:8 b:4 c:8 "));
}

TEST(CompareNodes, NamesTheNodeAndWhatDiffers) {
  for (const std::string& text : compare({node("a", 1, "1"), node("b", 1, "1"), node("c", 1, "2")})) {
    EXPECT_THAT(text, testing::HasSubstr("the seed is 2 on node 2 (c), and 1 on node 0 (a)"));
  }
  NodeDescription longer = node("b", 1, "1");
  longer.same.emplace_back("more", "yes");
  EXPECT_THAT(compare({node("a", 1, "1"), longer})[0],
              testing::HasSubstr("more is yes on node 1 (b), and not set on node 0 (a)"));
}

}  // namespace
}  // namespace rp::test
