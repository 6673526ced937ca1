#include "coordinator/exchange/send_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/nodes/local_network.h"

namespace rp::test {
namespace {

// A network whose messages arrive when a test says so.
class HeldNetwork : public NodeNetwork {
 public:
  [[nodiscard]] NodePlace place() const override { return {.node = 0, .num_nodes = 2}; }
  void send(int, NodeMessageTag tag, std::span<const std::byte>, Done done) override {
    sent_.emplace_back(tag.number, std::move(done));
  }
  void receive(int, NodeMessageTag, std::span<std::byte>, Done) override {}
  void finish() override {}
  void stop() override {}

  // Returns the numbers of the messages that are on their way.
  [[nodiscard]] std::vector<std::uint32_t> on_way() const {
    std::vector<std::uint32_t> numbers;
    for (const auto& [number, done] : sent_) numbers.push_back(number);
    return numbers;
  }
  // The oldest message arrives.
  void arrive() {
    const Done done = std::move(sent_.front().second);
    sent_.erase(sent_.begin());
    done();
  }

 private:
  std::vector<std::pair<std::uint32_t, Done>> sent_;
};

LongMessage gradient(std::uint32_t number) {
  return {.tag = {.kind = NodeMessageKind::kGradient, .number = number}, .memory = {}, .done = [] {}};
}
LongMessage weights(std::uint32_t number) {
  return {.tag = {.kind = NodeMessageKind::kWeights, .number = number}, .memory = {}, .done = [] {}};
}
WeightsOrder order(std::uint64_t version, std::uint32_t use) {
  return {.version = Version(version), .first_use = UseId(use)};
}

TEST(SendQueue, SendsGradientsInTheirOrderAndFewAtATime) {
  HeldNetwork network;
  SendQueue queue(network, 1);
  for (std::uint32_t i = 0; i < 20; ++i) queue.send_gradient(gradient(i));
  EXPECT_EQ(network.on_way().size(), std::size_t{kMessagesOnWay});
  for (std::uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(network.on_way().front(), i);
    network.arrive();
  }
  EXPECT_TRUE(network.on_way().empty());
}

TEST(SendQueue, SendsTheWeightsThatAreNeededFirst) {
  HeldNetwork network;
  SendQueue queue(network, 1);
  for (std::uint32_t i = 100; i < 100 + kMessagesOnWay; ++i) queue.send_weights(order(1, 0), weights(i));
  queue.send_weights(order(2, 0), weights(20));
  queue.send_weights(order(1, 9), weights(19));
  queue.send_weights(order(1, 3), weights(13));
  queue.send_weights(order(1, 3), weights(14));
  for (int i = 0; i < kMessagesOnWay; ++i) network.arrive();
  EXPECT_EQ(network.on_way(), (std::vector<std::uint32_t>{13, 14, 19, 20}));
}

TEST(SendQueue, SendsOneMessageOfWeightsWhileThereAreGradients) {
  HeldNetwork network;
  SendQueue queue(network, 1);
  queue.send_gradient(gradient(0));
  for (std::uint32_t i = 10; i < 14; ++i) queue.send_weights(order(1, i), weights(i));
  EXPECT_EQ(network.on_way(), (std::vector<std::uint32_t>{0, 10}));
  network.arrive();  // the last gradient
  EXPECT_EQ(network.on_way(), (std::vector<std::uint32_t>{10, 11, 12, 13}));
  queue.send_gradient(gradient(1));
  EXPECT_EQ(network.on_way().back(), 1U) << "a gradient does not wait for weights";
}

TEST(SendQueue, KeepsTheOrderWhenMessagesArriveWhileOthersAreSent) {
  constexpr int kNum = 3000;
  LocalNetwork network(2, {.seed = 1, .eager_bytes = 0});
  SendQueue queue(network.node(0), 1);
  std::vector<int> sent(kNum), received(kNum, -1);
  std::atomic<int> num_done = 0;  // sends and receives
  const NodeMessageTag tag{.kind = NodeMessageKind::kGradient, .number = 7};
  for (int i = 0; i < kNum; ++i) {
    sent[static_cast<std::size_t>(i)] = i;
    network.node(1).receive(0, tag, std::as_writable_bytes(std::span(&received[static_cast<std::size_t>(i)], 1)),
                            [&num_done] { ++num_done; });
  }
  for (int i = 0; i < kNum; ++i) {
    queue.send_gradient({.tag = tag,
                         .memory = std::as_bytes(std::span(&sent[static_cast<std::size_t>(i)], 1)),
                         .done = [&num_done] { ++num_done; }});
  }
  while (num_done < 2 * kNum) std::this_thread::yield();
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace rp::test
