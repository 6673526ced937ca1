// Tests NodeCommunicator with threads as nodes, over tests/nccl/fake_nccl.h.
#include "nccl/node_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "common/system/clock.h"
#include "tests/nccl/fake_nccl.h"

namespace rp::test {
namespace {

constexpr std::int64_t kSecond = kNsPerSecond;
constexpr WaitLimits kLong{.stop = nullptr, .timeout_ns = 30 * kSecond};

// The nodes of a run, each with a communicator, a stream and memory.
class Nodes {
 public:
  struct Node {
    explicit Node(NodePlace of) : place(of), communicator(FakeNccl::table(), of) {}
    const NodePlace place;
    NodeCommunicator communicator;
    std::vector<std::byte> sent;      // the memory of one exchange; whom it is for: fill()
    std::vector<std::byte> received;  // in the order of the nodes

    [[nodiscard]] CUstream_st* stream() { return reinterpret_cast<CUstream_st*>(this); }
    // Sends `bytes` bytes to every other node, and receives as many from each.
    [[nodiscard]] std::vector<ExchangePart> parts(std::size_t bytes) {
      sent.resize(bytes * static_cast<std::size_t>(place.num_nodes));
      received.assign(sent.size(), std::byte{0});
      std::vector<ExchangePart> parts;
      for (int i = 1; i < place.num_nodes; ++i) {
        const int peer = (place.node + i) % place.num_nodes;
        const std::size_t at = static_cast<std::size_t>(peer) * bytes;
        parts.push_back({.node = peer,
                         .sent = std::span(sent).subspan(at, bytes),
                         .received = std::span(received).subspan(at, bytes)});
      }
      return parts;
    }
    // Makes one exchange and waits until its stream has executed it, as a worker does. Returns false
    // after an abort.
    [[nodiscard]] bool exchange(FakeNccl& nccl, std::span<const ExchangePart> with) {
      communicator.exchange(with, stream());
      if (communicator.wait_enqueued(kLong) != WaitResult::kReached) return false;
      while (!nccl.wait_done(stream(), kNsPerMs)) communicator.check();
      return !communicator.observe_abort();
    }
  };

  Nodes(FakeNccl& nccl, int num_nodes) : nccl_(nccl) {
    EXPECT_EQ(FakeNccl::table().get_unique_id(&id_), NcclResult::kSuccess);
    for (int node = 0; node < num_nodes; ++node)
      nodes_.push_back(std::make_unique<Node>(NodePlace{.node = node, .num_nodes = num_nodes}));
  }

  [[nodiscard]] Node& at(int node) { return *nodes_[static_cast<std::size_t>(node)]; }
  [[nodiscard]] const NcclId& id() const { return id_; }

  // Calls the function for each node, in a thread of its own. Returns what it has thrown, by node.
  std::vector<std::string> run(const std::function<void(Node&)>& function) {
    std::vector<std::string> errors(nodes_.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          function(*nodes_[i]);
        } catch (const Error& error) {
          errors[i] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }
  void connect() {
    const auto errors = run([this](Node& node) {
      EXPECT_TRUE(node.communicator.connect(id_, {nullptr, 30 * kSecond}));
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  void finish() {
    (void)run([](Node& node) { EXPECT_TRUE(node.communicator.finish(30 * kSecond)); });
    EXPECT_THAT(nccl_.mistakes(), testing::IsEmpty());
    EXPECT_EQ(nccl_.num_calls("ncclCommAbort"), 0);
  }

 private:
  FakeNccl& nccl_;
  NcclId id_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

std::byte pattern(int from, int to, int exchange, std::size_t i) {
  return static_cast<std::byte>(31 * from + 7 * to + 3 * exchange + static_cast<int>(i % 251));
}

TEST(NodeCommunicator, EveryNodeReceivesWhatTheOthersSendToIt) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    FakeNccl nccl({.seed = seed, .max_delay_us = seed % 3 == 0 ? 200 : 0});
    const int num_nodes = 1 + static_cast<int>(seed % 5);
    Nodes nodes(nccl, num_nodes);
    nodes.connect();
    const auto errors = nodes.run([&](Nodes::Node& node) {
      for (int exchange = 0; exchange < 6; ++exchange) {
        const std::size_t bytes = exchange % 3 == 2 ? 0 : 100 + 77 * static_cast<std::size_t>(exchange);
        const std::vector<ExchangePart> parts = node.parts(bytes);
        for (int to = 0; to < num_nodes; ++to) {
          for (std::size_t i = 0; i < bytes; ++i)
            node.sent[static_cast<std::size_t>(to) * bytes + i] = pattern(node.place.node, to, exchange, i);
        }
        ASSERT_TRUE(node.exchange(nccl, parts));
        for (int from = 0; from < num_nodes; ++from) {
          if (from == node.place.node) continue;
          for (std::size_t i = 0; i < bytes; ++i) {
            ASSERT_EQ(node.received[static_cast<std::size_t>(from) * bytes + i],
                      pattern(from, node.place.node, exchange, i))
                << "exchange " << exchange << ", byte " << i << " from node " << from;
          }
        }
      }
    });
    EXPECT_THAT(errors, testing::Each(""));
    nodes.finish();
  }
}

TEST(NodeCommunicator, ExchangeOfNothingCallsNothing) {
  FakeNccl nccl;
  Nodes nodes(nccl, 2);
  nodes.connect();
  (void)nodes.run([&](Nodes::Node& node) { EXPECT_TRUE(node.exchange(nccl, node.parts(0))); });
  EXPECT_EQ(nccl.num_calls("ncclGroupStart"), 0);
  nodes.finish();
}

// A node that makes its exchanges in another order than the rest. The lengths differ, so it is
// noticed; if they did not, the sums would be wrong (ExchangeBits).
TEST(NodeCommunicator, NodeThatMakesExchangesInAnotherOrderIsNoticed) {
  FakeNccl nccl;
  Nodes nodes(nccl, 3);
  nodes.connect();
  const auto errors = nodes.run([&](Nodes::Node& node) {
    const bool is_mutant = node.place.node == 1;
    for (const std::size_t bytes :
         is_mutant ? std::vector<std::size_t>{200, 100} : std::vector<std::size_t>{100, 200}) {
      if (!node.exchange(nccl, node.parts(bytes))) break;
    }
  });
  ASSERT_THAT(nccl.mistakes(), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(nccl.mistakes().front(),
              testing::AnyOf(testing::HasSubstr("100 and 200 bytes"), testing::HasSubstr("200 and 100 bytes")));
  (void)nodes.run([](Nodes::Node& node) { node.communicator.abort(); });
}

TEST(NodeCommunicator, NodeThatLeavesOutAnExchangeIsNoticed) {
  FakeNccl nccl;
  Nodes nodes(nccl, 2);
  nodes.connect();
  (void)nodes.run([&](Nodes::Node& node) {
    for (const int exchange : {0, 1}) {
      std::vector<ExchangePart> parts = node.parts(64);
      if (node.place.node == 1 && exchange == 0) parts.front().received = {};
      node.communicator.exchange(parts, node.stream());
      if (node.communicator.wait_enqueued(kLong) != WaitResult::kReached) return;
    }
    (void)nccl.wait_done(node.stream(), kSecond / 10);
  });
  ASSERT_THAT(nccl.mistakes(), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(nccl.mistakes().front(), testing::HasSubstr("a send without a receive"));
  (void)nodes.run([](Nodes::Node& node) { node.communicator.abort(); });
}

TEST(NodeCommunicator, NodeThatNeverComesIsGivenUp) {
  FakeNccl nccl({.notices_loss = false});
  Nodes nodes(nccl, 3);
  const std::int64_t begin_ns = now_ns();
  const auto errors = nodes.run([&](Nodes::Node& node) {
    if (node.place.node == 2) return;
    (void)node.communicator.connect(nodes.id(), {nullptr, kSecond / 5});
  });
  EXPECT_GE(now_ns() - begin_ns, kSecond / 5);
  for (const int node : {0, 1})
    EXPECT_THAT(errors[static_cast<std::size_t>(node)], testing::HasSubstr("not all 3 nodes have joined"));
  EXPECT_EQ(nccl.num_calls("ncclCommAbort"), 2);
  // It comes too late, and must not wait for ever either.
  EXPECT_THROW((void)nodes.at(2).communicator.connect(nodes.id(), {nullptr, kSecond / 5}), Error);
  EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
}

// The other nodes learn of it from NCCL, or only from the thread that calls abort().
TEST(NodeCommunicator, NodeThatStopsInTheMiddleEndsTheExchangesOfAll) {
  for (const bool notices_loss : {true, false}) {
    SCOPED_TRACE(notices_loss);
    FakeNccl nccl({.notices_loss = notices_loss});
    Nodes nodes(nccl, 3);
    nodes.connect();
    nccl.hang(2);
    std::atomic<int> num_waiting{0};
    std::thread watch([&] {
      while (num_waiting.load() < 3) std::this_thread::yield();
      nodes.at(2).communicator.abort();
      if (notices_loss) return;
      for (const int node : {0, 1}) nodes.at(node).communicator.abort();
    });
    const auto errors = nodes.run([&](Nodes::Node& node) {
      node.communicator.exchange(node.parts(500), node.stream());
      EXPECT_EQ(node.communicator.wait_enqueued(kLong), WaitResult::kReached);
      ++num_waiting;
      // As a worker waits: for the stream, and now and then it asks NCCL.
      while (!nccl.wait_done(node.stream(), kNsPerMs)) node.communicator.check();
    });
    watch.join();
    for (const int node : {0, 1}) {
      const std::string& error = errors[static_cast<std::size_t>(node)];
      if (notices_loss) {
        EXPECT_THAT(error, testing::HasSubstr("remote process exited"));
      } else {
        EXPECT_EQ(error, "");
      }
    }
    EXPECT_EQ(errors[2], "");
    for (int node = 0; node < 3; ++node) nodes.at(node).communicator.abort();
    EXPECT_EQ(nccl.num_calls("ncclCommAbort"), 3);
    EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
  }
}

TEST(NodeCommunicator, AbortEndsAWaitForNodesThatJoin) {
  FakeNccl nccl;
  Nodes nodes(nccl, 2);
  std::thread other([&] {
    while (nccl.num_calls("ncclCommGetAsyncError") < 3) std::this_thread::yield();
    nodes.at(0).communicator.abort();
  });
  EXPECT_FALSE(nodes.at(0).communicator.connect(nodes.id(), {nullptr, 600 * kSecond}));
  other.join();
  EXPECT_EQ(nccl.num_calls("ncclCommAbort"), 1);
}

TEST(NodeCommunicator, AbortEndsAWaitForNodesThatFinish) {
  FakeNccl nccl({.notices_loss = false});
  Nodes nodes(nccl, 2);
  nodes.connect();
  std::thread other([&] {
    while (nccl.num_calls("ncclCommFinalize") < 1) std::this_thread::yield();
    nodes.at(0).communicator.abort();
  });
  EXPECT_FALSE(nodes.at(0).communicator.finish(600 * kSecond));
  other.join();
  nodes.at(1).communicator.abort();
  EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
}

TEST(NodeCommunicator, FinishGivesUpNodesThatDoNotCome) {
  FakeNccl nccl({.notices_loss = false});
  Nodes nodes(nccl, 2);
  nodes.connect();
  EXPECT_FALSE(nodes.at(0).communicator.finish(kSecond / 10));
  EXPECT_EQ(nccl.num_calls("ncclCommAbort"), 1);
  EXPECT_EQ(nccl.num_calls("ncclCommDestroy"), 0);
}

TEST(NodeCommunicator, AbortByManyThreadsIsOneAbort) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    FakeNccl nccl({.seed = seed, .max_delay_us = 300});
    Nodes nodes(nccl, 2);
    nodes.connect();
    nccl.hang(1);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&nodes, i] {
        nodes.at(i % 2).communicator.abort();
        nodes.at(i % 2).communicator.abort();
      });
    }
    (void)nodes.run([&](Nodes::Node& node) {
      node.communicator.exchange(node.parts(50), node.stream());
      (void)node.communicator.wait_enqueued(kLong);
      EXPECT_TRUE(nccl.wait_done(node.stream(), 30 * kSecond));
    });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(nccl.num_calls("ncclCommAbort"), 2) << "seed " << seed;
    for (const std::string& mistake : nccl.mistakes()) ADD_FAILURE() << "seed " << seed << ": " << mistake;
  }
}

// Waits end at once, but a caller of abort() may free the memory next.
TEST(NodeCommunicator, AbortThatNeedsLongKeepsOnlyItsCallersWaiting) {
  FakeNccl nccl;
  Nodes nodes(nccl, 2);
  NodeCommunicator& communicator = nodes.at(0).communicator;
  nccl.hold("ncclCommAbort");
  std::atomic<bool> has_ended{false};
  std::vector<std::thread> threads;
  threads.emplace_back([&] { EXPECT_FALSE(communicator.connect(nodes.id(), {nullptr, 600 * kSecond})); });
  while (nccl.num_calls("ncclCommGetAsyncError") < 1) std::this_thread::yield();
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      communicator.abort();
      EXPECT_TRUE(has_ended.load());
    });
  }
  threads.front().join();
  while (nccl.num_calls("ncclCommAbort") < 1) std::this_thread::yield();
  sleep_until_ns(now_ns() + kSecond / 50);  // time in which a mistake would show
  has_ended.store(true);
  nccl.let_go();
  for (std::size_t i = 1; i < threads.size(); ++i) threads[i].join();
  EXPECT_EQ(nccl.num_calls("ncclCommAbort"), 1);
}

TEST(NodeCommunicator, NothingHappensAfterAnAbort) {
  FakeNccl nccl;
  Nodes nodes(nccl, 2);
  nodes.connect();
  nodes.at(0).communicator.abort();
  const int num_groups = nccl.num_calls("ncclGroupStart");
  Nodes::Node& node = nodes.at(0);
  node.communicator.exchange(node.parts(100), node.stream());
  EXPECT_EQ(node.communicator.wait_enqueued(kLong), WaitResult::kStopped);
  node.communicator.check();
  EXPECT_FALSE(node.communicator.finish(kSecond));
  EXPECT_EQ(nccl.num_calls("ncclGroupStart"), num_groups);
  EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
}

TEST(NodeCommunicator, AbortBeforeTheConnectionPreventsIt) {
  FakeNccl nccl;
  Nodes nodes(nccl, 2);
  nodes.at(0).communicator.abort();
  EXPECT_FALSE(nodes.at(0).communicator.connect(nodes.id(), {nullptr, 600 * kSecond}));
  EXPECT_EQ(nccl.num_calls("ncclCommInitRankConfig"), 0);
}

TEST(NodeCommunicator, StopOfTheWorkerEndsAWait) {
  FakeNccl nccl({.max_delay_us = 2000});
  Nodes nodes(nccl, 2);
  nodes.connect();
  const std::atomic<bool> stop{true};
  nodes.at(0).communicator.exchange(nodes.at(0).parts(10), nodes.at(0).stream());
  EXPECT_EQ(nodes.at(0).communicator.wait_enqueued({.stop = &stop, .timeout_ns = 600 * kSecond}), WaitResult::kStopped);
}

TEST(NodeCommunicator, ErrorOfNcclIsReportedOnceItIsLookedFor) {
  FakeNccl nccl;
  Nodes nodes(nccl, 2);
  nodes.connect();
  nodes.at(1).communicator.check();
  nccl.report(1, NcclResult::kUnhandledCudaError);
  try {
    nodes.at(1).communicator.check();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kGpuFailed);
    EXPECT_THAT(error.what(), testing::HasSubstr("node 1 of 2, exchanging gradients: NCCL reports: "));
  }
}

// A group that stays open would take in what the thread does next.
TEST(NodeCommunicator, GroupIsEndedAlsoIfACallInItFails) {
  for (const char* const function : {"ncclSend", "ncclRecv", "ncclGroupEnd"}) {
    SCOPED_TRACE(function);
    FakeNccl nccl;
    Nodes nodes(nccl, 2);
    nodes.connect();
    nccl.fail_next(function, NcclResult::kInvalidUsage);
    EXPECT_THROW(nodes.at(0).communicator.exchange(nodes.at(0).parts(10), nodes.at(0).stream()), Error);
    EXPECT_EQ(nccl.num_calls("ncclGroupEnd"), 1);
    EXPECT_EQ(FakeNccl::table().group_start(), NcclResult::kSuccess) << "the group before is still open";
    EXPECT_EQ(FakeNccl::table().group_end(), NcclResult::kSuccess);
  }
}

TEST(NodeCommunicator, DestructorAbortsWhatIsNotFinished) {
  FakeNccl nccl;
  {
    Nodes nodes(nccl, 2);
    nodes.connect();
  }
  EXPECT_EQ(nccl.num_calls("ncclCommAbort"), 2);
  EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
}

// What the fake refuses must be refused, or the tests above prove little.
TEST(FakeNccl, CallsOutsideOfAGroupAndAfterAnAbortAreMistakes) {
  FakeNccl nccl;
  const NcclTable& table = FakeNccl::table();
  NcclId id;
  EXPECT_EQ(table.get_unique_id(&id), NcclResult::kSuccess);
  ncclComm* comm = nullptr;
  NcclConfig config;
  config.blocking = 0;
  EXPECT_EQ(table.comm_init_rank_config(&comm, 1, id, 0, &config), NcclResult::kInProgress);
  std::byte data{};
  EXPECT_EQ(table.send(&data, 1, NcclType::kUint8, 0, comm, nullptr), NcclResult::kInvalidUsage);
  EXPECT_EQ(table.comm_abort(comm), NcclResult::kSuccess);
  NcclResult error{};
  EXPECT_EQ(table.comm_get_async_error(comm, &error), NcclResult::kSuccess);
  EXPECT_THAT(nccl.mistakes(),
              testing::ElementsAre(testing::HasSubstr("ncclSend outside of a group"),
                                   testing::HasSubstr("ncclCommGetAsyncError after the end of the communicator")));
}

}  // namespace
}  // namespace rp::test
