#include "nodes/agreement.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <stdexcept>
#include <thread>

#include "tests/nodes/local_network.h"

namespace rp::test {
namespace {

// Runs a function on each node, in a thread.
template <typename Do>
void on_nodes(LocalNetwork& network, int num_nodes, const Do& run) {
  std::vector<std::thread> threads;
  for (int node = 0; node < num_nodes; ++node) threads.emplace_back([&, node] { run(network.node(node)); });
  for (std::thread& thread : threads) thread.join();
}

TEST(NodeAgreement, AllNodesFollowTheFirst) {
  LocalNetwork network(3, {});
  on_nodes(network, 3, [](NodeNetwork& node) {
    NodeAgreement agreement(node);
    for (int call = 0; call < 20; ++call) {
      const std::string own = std::to_string(100 * node.place().node + call);
      EXPECT_EQ(agreement.from_first(own), std::to_string(call));
    }
    EXPECT_EQ(agreement.from_first(node.place().node == 0 ? "" : "other"), "");
    const std::string first(100'000, 'x');
    EXPECT_EQ(agreement.from_first(node.place().node == 0 ? first : ""), first);
  });
}

// The signal arrives at one node only, and all end at the same call.
TEST(NodeAgreement, ASignalOfAnyNodeEndsAllAtTheSameCall) {
  for (int receiver = 0; receiver < 3; ++receiver) {
    LocalNetwork network(3, {.seed = static_cast<unsigned>(receiver) + 1});
    std::vector<int> ends(3);
    on_nodes(network, 3, [&](NodeNetwork& node) {
      NodeAgreement agreement(node);
      int call = 0;
      int signal = 0;
      while (signal == 0) {
        ++call;
        signal = agreement.stop_signal(node.place().node == receiver && call >= 5 ? SIGTERM : 0);
      }
      EXPECT_EQ(signal, SIGTERM);
      ends[static_cast<std::size_t>(node.place().node)] = call;
      agreement.finish();
    });
    EXPECT_GE(ends[0], 5);
    EXPECT_EQ(ends, std::vector<int>(3, ends[0]));
  }
}

TEST(NodeAgreement, AFailureEndsAWaitForTheFirst) {
  LocalNetwork network(2, {});
  NodeAgreement agreement(network.node(1));
  std::thread waiting([&] { EXPECT_THROW((void)agreement.from_first(""), std::runtime_error); });
  network.node(1).report_failure(std::make_exception_ptr(std::runtime_error("gone")));
  waiting.join();
  EXPECT_THROW((void)agreement.from_first(""), std::runtime_error) << "later calls, too";
}

}  // namespace
}  // namespace rp::test
