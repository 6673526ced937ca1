#include "nodes/heartbeats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/system/clock.h"
#include "common/system/host_name.h"
#include "common/text.h"
#include "nodes/pending_messages.h"
#include "roundpipe/error.h"
#include "tests/nodes/local_network.h"

namespace rp::test {
namespace {

constexpr std::int64_t kTimeoutNs = 400 * kNsPerMs;

constexpr int kNumNodes = 3;

// Waits until a node's run has failed and returns the error.
std::string failure_of(NodeNetwork& node, ExitCode code = ExitCode::kNodeLost) {
  PendingMessages pending;
  (void)pending.add();
  node.add_failure_handler([pending](const std::exception_ptr& error) mutable { pending.fail(error); });
  try {
    pending.wait();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
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

// Nodes that say for how long they have waited for others.
class NodesThatWait : public testing::Test {
 protected:
  void start(int num_nodes = kNumNodes) {
    for (int node = 0; node < num_nodes; ++node) {
      heartbeats_[node] = std::make_unique<NodeHeartbeats>(
          network_.node(node), kTimeoutNs,
          NodeStandstill{.wait_ns = [this, node] { return waits_[node] ? now_ns() - since_ns_[node] : 0; },
                         .wait_text = [node] { return cat("call ", node); },
                         .limit_ns = kLimitNs});
      network_.node(node).add_failure_handler([this](const std::exception_ptr&) { ++num_failed_; });
    }
  }
  void begin_wait(int node) {
    since_ns_[node] = now_ns();
    waits_[node] = true;
  }
  // Expects that all nodes fail because all of them wait, and returns how long that took.
  std::int64_t time_to_failure_ns() {
    const std::int64_t since = now_ns();
    for (int node = 0; node < kNumNodes; ++node) {
      EXPECT_THAT(failure_of(network_.node(node), ExitCode::kHang),
                  testing::AllOf(testing::HasSubstr("all 3 nodes wait for each other, and have done nothing else for "
                                                    "0.2 s (--wait-timeout): their programs may have made different "
                                                    "calls, or a message between them is lost"),
                                 testing::HasSubstr(finishes_[node] ? "this node waits for the others to end"
                                                                    : cat("this node waits for call ", node))));
    }
    return now_ns() - since;
  }

  static constexpr std::int64_t kLimitNs = 200 * kNsPerMs;
  std::array<std::atomic<bool>, kNumNodes> waits_{};
  std::array<std::atomic<std::int64_t>, kNumNodes> since_ns_{};
  std::array<bool, kNumNodes> finishes_{};
  std::atomic<int> num_failed_ = 0;
  LocalNetwork network_{kNumNodes, {}};
  std::array<std::unique_ptr<NodeHeartbeats>, kNumNodes> heartbeats_;
};

TEST_F(NodesThatWait, ForEachOtherEndTogetherAndEachSaysForWhat) {
  start();
  for (int node = 0; node < kNumNodes; ++node) begin_wait(node);
  EXPECT_GE(time_to_failure_ns(), kLimitNs);
}

TEST_F(NodesThatWait, ForOneThatWorksGoOn) {
  start();
  for (const int node : {0, 2}) begin_wait(node);
  usleep(4 * kLimitNs / 1000);
  EXPECT_EQ(num_failed_, 0);
  begin_wait(1);
  EXPECT_GE(time_to_failure_ns(), kLimitNs) << "the time of the others alone does not count";
}

// The one that goes on does so between two of its messages, so no other node ever hears that it does not wait.
TEST_F(NodesThatWait, ForOneThatGoesOnNowAndThenGoOn) {
  start();
  for (int node = 0; node < kNumNodes; ++node) begin_wait(node);
  for (int time = 0; time < 10; ++time) {
    usleep(kLimitNs / 2 / 1000);
    begin_wait(1);
  }
  EXPECT_EQ(num_failed_, 0);
  EXPECT_GE(time_to_failure_ns(), kLimitNs - kLimitNs / 10);
}

TEST_F(NodesThatWait, ForOneWhoseProgramHasEndedEnd) {
  finishes_ = {true, false, true};
  start();
  std::vector<std::thread> ends;
  for (const int node : {0, 2}) ends.emplace_back([this, node] { EXPECT_THROW(heartbeats_[node]->finish(), Error); });
  usleep(4 * kLimitNs / 1000);
  EXPECT_EQ(num_failed_, 0) << "node 1 works";
  begin_wait(1);
  time_to_failure_ns();
  for (std::thread& end : ends) end.join();
}

}  // namespace
}  // namespace rp::test
