// Exchanges gradients between nodes with a context, streams and events each, over a driver and an
// NCCL without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/cuda/gpu_node.h"
#include "tests/cuda/nccl_in_streams.h"
#include "tests/nccl/fake_nccl.h"

namespace rp::test {
namespace {

// The number of the download stream of the first GpuNode: each of its streams has a second one for the
// host.
constexpr int kDownloads = 4;

Catalogue catalogue_of(NodePlace place) {
  PipelineRequest request{.name = "model", .layers = {}, .with_sums = true};
  for (const std::uint64_t size : {5 * kChunkElements + 96, std::uint64_t{500}, 3 * kChunkElements}) {
    request.layers.push_back(
        {.name = "l",
         .parameters = {{.name = "w", .dtype = DType::kBFloat16, .shape = {static_cast<std::int64_t>(size)}}}});
  }
  return Catalogue::lay_out(std::vector{request}, place, Reduce::kNccl);
}

// Moves all gradients of two rounds. What arrives must be what the nodes have computed.
void expect_exchanges(GpuNode& node, const Catalogue& catalogue, const GradientRoute& route) {
  const NodePlace place = catalogue.place();
  for (int round = 0; round < 2; ++round) {
    for (const GroupId group : catalogue.trained_groups(0)) {
      const std::uint64_t bytes = catalogue.weight_groups()[group].bytes();
      std::vector<std::byte> host(catalogue.gradient_buffer_bytes(group));
      const auto piece_of = [&](std::uint64_t piece, const std::byte* gradient, std::byte* received) {
        return ExchangePiece{.parts = route.parts(group, piece, gradient, received),
                             .downloads = route.downloads(group, piece, gradient, received)};
      };
      ASSERT_TRUE(node.move(some_bytes(bytes, place.node, round), host, route.num_pieces(group), piece_of));
      for (int from = 0; from < place.num_nodes; ++from) {
        const std::vector<std::byte> gradient = some_bytes(bytes, from, round);
        EXPECT_EQ(std::memcmp(host.data() + catalogue.part_offset(group, from),
                              gradient.data() + catalogue.owned(group).begin * 2, catalogue.part_offset(group, 1)),
                  0)
            << "node " << place.node << ", group " << group.value() << ", from node " << from;
      }
    }
  }
}

TEST(NcclExchange, StreamsKeepTheOrderOfComputationExchangeAndDownload) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    const FakeDriver driver({.seed = seed, .max_delay_us = 30});
    FakeNccl nccl(in_streams_of_driver(seed));
    const int num_nodes = 2 + static_cast<int>(seed % 2);
    NcclId id;
    ASSERT_EQ(FakeNccl::table().get_unique_id(&id), NcclResult::kSuccess);
    std::vector<std::thread> threads;
    for (int i = 0; i < num_nodes; ++i) {
      threads.emplace_back([&, i] {
        const Catalogue catalogue = catalogue_of({.node = i, .num_nodes = num_nodes});
        const GradientRoute route(catalogue, 0);
        GpuNode node(driver.table(), FakeNccl::table(), catalogue.place(), 1 << 20, route.receive_buffer_bytes());
        ASSERT_TRUE(node.connect(id, GpuNode::kLongNs));
        expect_exchanges(node, catalogue, route);
        EXPECT_TRUE(node.communicator().finish(GpuNode::kLongNs));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
    EXPECT_GT(nccl.num_groups(), 0);
  }
}

TEST(NcclExchange, NodeThatIsAloneExchangesWithItself) {
  const FakeDriver driver({.max_delay_us = 30});
  FakeNccl nccl(in_streams_of_driver(1));
  GpuNode node(driver.table(), FakeNccl::table(), {}, 100'000, 30'000);
  expect_exchange_with_itself(node, FakeNccl::table(), 100'000, 30'000);
  EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
}

// Two buffers take turns, so the third piece waits until the first one is downloaded.
TEST(NcclExchange, ReceivedPartsStayUntilTheyAreDownloaded) {
  FakeDriver driver;
  FakeNccl nccl(in_streams_of_driver(1));
  GpuNode node(driver.table(), FakeNccl::table(), {}, 1000, 250);
  driver.hold(kDownloads);
  std::thread other([&] {
    while (nccl.num_groups() < 2) std::this_thread::yield();
    sleep_until_ns(now_ns() + 20 * kNsPerMs);  // time in which a mistake would show
    EXPECT_EQ(nccl.num_groups(), 2);
    driver.let_go(kDownloads);
  });
  expect_exchange_with_itself(node, FakeNccl::table(), 1000, 250);
  other.join();
}

// The GPU waits for a node that hangs. After the abort the stream goes on, with the download of what
// has not arrived.
TEST(NcclExchange, AbortLetsTheStreamsGoOnAndIsSeenAfterTheDownload) {
  for (const bool notices_loss : {true, false}) {
    SCOPED_TRACE(notices_loss);
    const FakeDriver driver;
    FakeNcclSettings settings = in_streams_of_driver(1);
    settings.notices_loss = notices_loss;
    FakeNccl nccl(settings);
    NcclId id;
    ASSERT_EQ(FakeNccl::table().get_unique_id(&id), NcclResult::kSuccess);
    const std::vector<std::byte> gradient = some_bytes(100, 0, 0);
    std::vector<std::byte> host(100);
    GpuNode first(driver.table(), FakeNccl::table(), {.node = 0, .num_nodes = 2}, 100, 100);
    std::thread other([&] {
      GpuNode second(driver.table(), FakeNccl::table(), {.node = 1, .num_nodes = 2}, 100, 100);
      EXPECT_TRUE(second.connect(id, GpuNode::kLongNs));
      // Until everything is enqueued: a wait, the copy and its host function, and a record.
      while (driver.log().at(kDownloads).size() < 4) std::this_thread::yield();
      second.communicator().abort();
      if (!notices_loss) first.communicator().abort();
    });
    ASSERT_TRUE(first.connect(id, GpuNode::kLongNs));
    const auto piece_of = [](std::uint64_t, const std::byte* sent, std::byte* received) {
      return ExchangePiece{.parts = {{.node = 1, .sent = {sent, 100}, .received = {received, 100}}},
                           .downloads = {{.node = 1, .from = {received, 100}, .to = 0}}};
    };
    if (notices_loss) {
      EXPECT_THROW((void)first.move(gradient, host, 1, piece_of), Error);
    } else {
      EXPECT_FALSE(first.move(gradient, host, 1, piece_of));
    }
    other.join();
    first.communicator().abort();
    EXPECT_TRUE(first.becomes_idle());
    EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
  }
}

}  // namespace
}  // namespace rp::test
