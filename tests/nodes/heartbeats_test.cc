#include "nodes/heartbeats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/system/clock.h"
#include "common/system/host_name.h"
#include "common/text.h"
#include "nodes/pending_messages.h"
#include "roundpipe/error.h"
#include "tests/nodes/local_network.h"

namespace rp::test {
namespace {

constexpr std::int64_t kTimeoutNs = 400 * kNsPerMs;

// Waits until a node's run has failed and returns the error.
std::string failure_of(NodeNetwork& node) {
  PendingMessages pending;
  (void)pending.add();
  node.add_failure_handler([pending](const std::exception_ptr& error) mutable { pending.fail(error); });
  try {
    pending.wait();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNodeLost);
    return error.what();
  }
  return "";
}

TEST(NodeHeartbeats, WaitForASlowNodeAsLongAsItLives) {
  LocalNetwork network(3, {});
  std::vector<std::thread> nodes;
  for (int node = 0; node < 3; ++node) {
    nodes.emplace_back([&, node] {
      NodeHeartbeats heartbeats(network.node(node), kTimeoutNs);
      if (node == 1) usleep(3 * kTimeoutNs / 1000);
      EXPECT_NO_THROW(heartbeats.finish());
    });
  }
  for (std::thread& node : nodes) node.join();
}

// A network on which nothing ever arrives.
class SilentNetwork : public NodeNetwork {
 public:
  [[nodiscard]] NodePlace place() const override { return {.node = 0, .num_nodes = 3}; }
  void send(int, NodeMessageTag, std::span<const std::byte>, Done) override { ++num_sent; }
  void receive(int, NodeMessageTag, std::span<std::byte>, Done) override {}
  void finish() override {}
  void stop() override {}

  std::atomic<int> num_sent = 0;
};

// It says which node is lost, which the next node would otherwise not know.
TEST(NodeHeartbeats, TheLastMessageIsSentWhileTheOneBeforeIsOnItsWay) {
  SilentNetwork network;
  NodeHeartbeats heartbeats(network, kTimeoutNs);
  EXPECT_THAT(failure_of(network), testing::HasSubstr("node 2 has sent nothing for 0.4 s"));
  EXPECT_EQ(network.num_sent, 2);
}

// The node after the lost one notices it, and the others end for the same reason.
TEST(NodeHeartbeats, ALostNodeEndsAllOthers) {
  LocalNetwork network(4, {});
  std::vector<std::unique_ptr<NodeHeartbeats>> nodes;
  for (int node = 0; node < 4; ++node)
    nodes.push_back(std::make_unique<NodeHeartbeats>(network.node(node), kTimeoutNs));
  usleep(kTimeoutNs / 1000);
  nodes[1].reset();
  const std::int64_t since = now_ns();
  for (const int node : {2, 3, 0}) {
    EXPECT_THAT(failure_of(network.node(node)),
                testing::HasSubstr(cat("node 1 (", host_name(), ") has sent nothing for 0.4 s")))
        << node;
  }
  EXPECT_GE(now_ns() - since, kTimeoutNs / 2);
}

TEST(NodeHeartbeats, AnotherFailureEndsTheWait) {
  LocalNetwork network(2, {});
  NodeHeartbeats first(network.node(0), kTimeoutNs);
  NodeHeartbeats second(network.node(1), kTimeoutNs);
  network.node(0).report_failure(std::make_exception_ptr(Error(ExitCode::kNodeLost, "the network is gone")));
  EXPECT_THROW(first.finish(), Error);
}

}  // namespace
}  // namespace rp::test
