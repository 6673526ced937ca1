#include "tests/nodes/local_network.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "tests/nodes/relay.h"

namespace rp::test {
namespace {

TEST(LocalNetwork, NodesPassOnWhatArrivesWhileTheyFinish) {
  constexpr int kNumNodes = 4, kNumRounds = 100;
  LocalNetwork network(kNumNodes, {});
  std::vector<std::thread> nodes;
  for (int node = 0; node < kNumNodes; ++node) {
    nodes.emplace_back(
        [&, node] { EXPECT_EQ(finish_during_relay(network.node(node), kNumRounds), kNumRounds) << "node " << node; });
  }
  for (std::thread& node : nodes) node.join();
}

// Two nodes, of which the first one sends and the second one receives so many messages, and both finish.
void run_two_nodes(int num_sent, int num_received) {
  static constexpr NodeMessageTag kTag{.kind = NodeMessageKind::kLosses, .number = 5};
  static int sent = 7;
  static std::array<int, 3> received;
  LocalNetwork network(2, {});
  for (int i = 0; i < num_sent; ++i) network.node(0).send(1, kTag, std::as_bytes(std::span(&sent, 1)), [] {});
  for (int i = 0; i < num_received; ++i) {
    const std::span<int> memory(&received.at(static_cast<std::size_t>(i)), 1);
    network.node(1).receive(0, kTag, std::as_writable_bytes(memory), [] {});
  }
  std::thread other([&] { network.node(1).finish(); });
  network.node(0).finish();
  other.join();
}

TEST(LocalNetwork, FailsTheTestForAMessageWithoutItsOtherEnd) {
  run_two_nodes(3, 3);
  EXPECT_NONFATAL_FAILURE(run_two_nodes(3, 2), "sent and not received: 1 from node 0 to node 1, kind 7, number 5");
  EXPECT_NONFATAL_FAILURE(run_two_nodes(2, 3), "awaited and not sent: 1 from node 0 to node 1, kind 7, number 5");
}

TEST(LocalNetworkDeathTest, NoThreadSendsWhileItsNodeFinishes) {
  EXPECT_DEATH(
      {
        LocalNetwork network(2, {});
        std::thread finishing([&] { network.node(0).finish(); });
        while (network.num_finishing() == 0) std::this_thread::yield();
        network.node(0).send(1, {}, {}, [] {});
      },
      "may_begin");
}

}  // namespace
}  // namespace rp::test
