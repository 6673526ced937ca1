#include "nodes/agreement.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

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

// Returns the call, counted from 1, before which each node ends by SIGTERM. `signal_of`: what a node has got at a call.
std::vector<int> ends_of(LocalNetwork& network, int num_nodes, const std::function<int(int node, int call)>& signal_of,
                         const std::function<bool(int call)>& may_end) {
  std::vector<int> ends(static_cast<std::size_t>(num_nodes));
  on_nodes(network, num_nodes, [&](NodeNetwork& network_of_node) {
    const int node = network_of_node.place().node;
    NodeAgreement agreement(network_of_node);
    int call = 0;
    int signal = 0;
    while (signal == 0) {
      ++call;
      std::this_thread::yield();  // the first node never waits
      signal = agreement.stop_signal(signal_of(node, call), may_end(call));
    }
    EXPECT_EQ(signal, SIGTERM);
    ends[static_cast<std::size_t>(node)] = call;
    agreement.finish();
    network_of_node.finish();
  });
  return ends;
}

class NodeAgreementOf : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Nodes, NodeAgreementOf, testing::Values(2, 3, 8, 13));

TEST_P(NodeAgreementOf, AllNodesFollowTheFirst) {
  LocalNetwork network(GetParam(), {});
  on_nodes(network, GetParam(), [](NodeNetwork& node) {
    NodeAgreement agreement(node);
    for (int call = 0; call < 20; ++call) {
      const std::string own = std::to_string(100 * node.place().node + call);
      EXPECT_EQ(agreement.from_first(own), std::to_string(call));
    }
    EXPECT_EQ(agreement.from_first(node.place().node == 0 ? "" : "other"), "");
    for (const std::size_t length : {60U, 61U, 100'000U}) {
      const std::string first(length, 'x');
      EXPECT_EQ(agreement.from_first(node.place().node == 0 ? first : ""), first);
    }
    agreement.finish();
    node.finish();
  });
}

// A node whose program is late does not delay the nodes under it.
TEST_P(NodeAgreementOf, DecisionsArriveBeforeOtherProgramsAskForThem) {
  LocalNetwork network(GetParam(), {});
  std::vector<std::unique_ptr<NodeAgreement>> nodes;
  for (int node = 0; node < GetParam(); ++node) nodes.push_back(std::make_unique<NodeAgreement>(network.node(node)));
  for (int call = 0; call < 3; ++call) (void)nodes[0]->from_first(std::to_string(call));
  for (int node = GetParam() - 1; node > 0; --node) {
    for (int call = 0; call < 3; ++call)
      EXPECT_EQ(nodes[static_cast<std::size_t>(node)]->from_first(""), std::to_string(call));
  }
}

// The first node may be late to say that no decision follows. The others pass this on while they finish.
TEST_P(NodeAgreementOf, TheLastMessageOfTheFirstPassesNodesThatAreFinishing) {
  const int num_nodes = GetParam();
  LocalNetwork network(num_nodes, {});
  on_nodes(network, num_nodes, [&](NodeNetwork& node) {
    NodeAgreement agreement(node);
    while (node.place().node == 0 && network.num_finishing() < num_nodes - 1) std::this_thread::yield();
    agreement.finish();
    node.finish();
  });
}

// The signal arrives at one node only, and all end at the same call.
TEST_P(NodeAgreementOf, ASignalOfAnyNodeEndsAllAtTheSameCall) {
  const int num_nodes = GetParam();
  for (int receiver = 0; receiver < num_nodes; ++receiver) {
    LocalNetwork network(num_nodes, {.seed = static_cast<unsigned>(receiver) + 1});
    const std::vector<int> ends = ends_of(
        network, num_nodes, [&](int node, int call) { return node == receiver && call >= 5 ? SIGTERM : 0; },
        [](int) { return true; });
    EXPECT_GE(ends[0], 5);
    EXPECT_EQ(ends, std::vector<int>(ends.size(), ends[0]));
  }
}

// A run whose GPUs exchange gradients may not end before every call.
TEST_P(NodeAgreementOf, NoNodeEndsBeforeACallThatMayNotEndTheRun) {
  const int num_nodes = GetParam();
  LocalNetwork network(num_nodes, {});
  const std::vector<int> ends = ends_of(
      network, num_nodes, [](int, int call) { return call > 5 ? SIGTERM : 0; }, [](int call) { return call % 7 == 3; });
  EXPECT_EQ(ends[0] % 7, 3);
  EXPECT_EQ(ends, std::vector<int>(ends.size(), ends[0]));
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
