// Adds gradients that went over NCCL, and the same gradients as the coordinators exchange them
// without it. The sums must have the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "coordinator/exchange/node_exchange.h"
#include "coordinator/updates/memory_group_updater.h"
#include "hoststore/store.h"
#include "nccl/gradient_route.h"
#include "nccl/node_communicator.h"
#include "tests/nccl/fake_nccl.h"
#include "tests/nodes/local_network.h"

namespace rp::test {
namespace {

using Sums = IndexedVector<UseId, std::vector<float>>;  // of what a node owns

struct Training {
  int num_nodes = 2;
  int rounds_per_node = 2;
  DType dtype = DType::kBFloat16;
  std::uint64_t receive_bytes = 0;
  unsigned seed = 1;
  int swapping_node = -1;  // exchanges the two uses of the tied group in the wrong order; -1: none does
};

// Three layers. The first and the last one share a group.
Catalogue catalogue_of(const Training& run, int node, Reduce reduce) {
  const std::int64_t equal = 2 * static_cast<std::int64_t>(kChunkElements) + 96;
  const ParameterRequest tied{.name = "t", .dtype = run.dtype, .shape = {equal}, .tied_group = 0};
  const auto weight = [&](std::int64_t size) {
    return ParameterRequest{.name = "w", .dtype = run.dtype, .shape = {size}};
  };
  PipelineRequest request{.name = "model", .layers = {}, .with_sums = true};
  request.layers.push_back({.name = "a", .parameters = {weight(equal), tied}});
  request.layers.push_back({.name = "b", .parameters = {weight(equal)}});
  request.layers.push_back({.name = "c", .parameters = {weight(500), tied}});
  return Catalogue::lay_out(std::vector{request}, {.node = node, .num_nodes = run.num_nodes}, reduce);
}

// The gradient of a use in a round. Numbers of very different sizes, so that their sum depends on
// the order.
std::vector<std::byte> gradient_of(const Training& run, const Catalogue& catalogue, UseId use, int round) {
  const WeightGroupRecord& group = catalogue.weight_groups()[catalogue.uses()[use].group];
  std::mt19937 random(run.seed * 1'000'003U + use.value() * 101U + static_cast<unsigned>(round));
  std::vector<std::byte> bytes(group.bytes());
  for (std::uint64_t i = 0; i < group.num_elements; ++i) {
    // A float with a random sign, exponents from -4 to 11, and seven bits of fraction.
    const auto drawn = static_cast<std::uint32_t>(random());
    const std::uint32_t bits = (drawn & 0x807f0000U) | ((123U + drawn % 16U) << 23U);
    if (group.dtype == DType::kFloat32) {
      std::memcpy(&bytes[4 * i], &bits, 4);
    } else {
      const auto upper = static_cast<std::uint16_t>(bits >> 16U);
      std::memcpy(&bytes[2 * i], &upper, 2);
    }
  }
  return bytes;
}

// The uses in the order in which a worker downloads their gradients.
std::vector<UseId> order_of_uses(const Catalogue& catalogue) {
  std::vector<UseId> order;
  for (int layer = catalogue.num_layers(); layer-- > 0;) {
    std::vector<UseId> uses = catalogue.uses_of(CatalogueLayer(static_cast<std::uint32_t>(layer)));
    std::ranges::reverse(uses);
    order.insert(order.end(), uses.begin(), uses.end());
  }
  return order;
}

std::unique_ptr<Store> store_of(const Training& run, int node, Reduce reduce) {
  StoreSettings settings;
  settings.arena_limit_bytes = std::uint64_t{64} << 20;
  return Store::create(settings, catalogue_of(run, node, reduce));
}

Sums sums_of(Store& store) {
  Sums sums;
  for (const UseRecord& use : store.catalogue().uses()) {
    const float* const sum = store.state(use.sum_offset);
    sums.push_back({sum, sum + store.catalogue().owned(use.group).size()});
  }
  return sums;
}

// A node of a run whose coordinators exchange gradients.
Sums sums_over_network(const Training& run, NodeNetwork& network) {
  const auto store = store_of(run, network.place().node, Reduce::kMpi);
  const Catalogue& catalogue = store->catalogue();
  const std::vector<GroupId> groups = catalogue.trained_groups(0);
  MemoryGroupUpdater updater(*store, groups, 1, true);
  NodeExchange exchange(*store, 0, network, [] {});
  const std::vector<UseId> order = order_of_uses(catalogue);
  for (int round = 0; round < run.num_nodes * run.rounds_per_node; ++round) {
    const int owner = round % run.num_nodes;
    std::uint64_t missing = 0;  // events of sends, or elements
    if (owner == network.place().node) {
      for (const UseId use : order) {
        const std::vector<std::byte> gradient = gradient_of(run, catalogue, use, round);
        std::memcpy(store->gradients(catalogue.uses()[use].gradient_offset), gradient.data(), gradient.size());
        const ElementRange owned = catalogue.owned(catalogue.uses()[use].group);
        const std::byte* const part = gradient.data() + owned.begin * dtype_bytes(run.dtype);
        if (!owned.is_empty()) updater.add_to_sum({.use = use, .elements = owned, .data = part}, round == 0);
        exchange.send_gradient(use);
        ++missing;
      }
    } else {
      exchange.expect_gradients(owner, Version(1), static_cast<std::uint64_t>(round));
      for (const UseId use : order) missing += catalogue.owned(catalogue.uses()[use].group).size();
    }
    while (missing > 0) {
      for (const ExchangeEvent& event : exchange.take_events()) {
        const auto* const received = std::get_if<ReceivedGradient>(&event);
        if (received == nullptr) {
          --missing;
          continue;
        }
        missing -= received->elements.size();
        updater.add_to_sum({.use = received->use, .elements = received->elements, .data = received->data}, round == 0);
        exchange.give_back(*received);
      }
      std::this_thread::yield();
    }
  }
  network.finish();
  return sums_of(*store);
}

// A node of a run whose GPUs exchange gradients. "Device memory" is this process's.
Sums sums_over_nccl(const Training& run, FakeNccl& nccl, const NcclId& id, int node) {
  constexpr std::int64_t kLongNs = 30 * kNsPerSecond;
  const auto store = store_of(run, node, Reduce::kNccl);
  const Catalogue& catalogue = store->catalogue();
  const std::vector<GroupId> groups = catalogue.trained_groups(0);
  MemoryGroupUpdater updater(*store, groups, 1, true);
  const GradientRoute route(catalogue, run.receive_bytes);
  std::vector<std::byte> received(route.receive_buffer_bytes());
  auto* const stream = reinterpret_cast<CUstream_st*>(received.data());
  NodeCommunicator communicator(FakeNccl::table(), catalogue.place());
  EXPECT_TRUE(communicator.connect(id, {nullptr, kLongNs}));
  std::vector<UseId> order = order_of_uses(catalogue);
  if (node == run.swapping_node) {
    EXPECT_EQ(catalogue.uses()[order[1]].group, catalogue.uses()[order[3]].group);
    std::swap(order[1], order[3]);
  }
  for (int set = 0; set < run.rounds_per_node; ++set) {
    for (const UseId use : order) {
      const GroupId group = catalogue.uses()[use].group;
      const std::vector<std::byte> gradient = gradient_of(run, catalogue, use, set * run.num_nodes + node);
      std::vector<std::byte> host(catalogue.gradient_buffer_bytes(group));
      for (std::uint64_t piece = 0; piece < route.num_pieces(group); ++piece) {
        communicator.exchange(route.parts(group, piece, gradient.data(), received.data()), stream);
        EXPECT_EQ(communicator.wait_enqueued({.stop = nullptr, .timeout_ns = kLongNs}), WaitResult::kReached);
        EXPECT_TRUE(nccl.wait_done(stream, kLongNs));
        for (const auto& each : route.downloads(group, piece, gradient.data(), received.data()))
          std::memcpy(host.data() + each.to, each.from.data(), each.from.size());
      }
      if (host.empty()) continue;
      for (int from = 0; from < run.num_nodes; ++from) {
        updater.add_to_sum(
            {.use = use, .elements = catalogue.owned(group), .data = host.data() + catalogue.part_offset(group, from)},
            set == 0 && from == 0);
      }
    }
  }
  EXPECT_TRUE(communicator.finish(kLongNs));
  return sums_of(*store);
}

// Returns what `function` returns for each node, called in a thread of its own.
template <typename Function>
std::vector<Sums> on_all_nodes(const Training& run, Function function) {
  std::vector<Sums> sums(static_cast<std::size_t>(run.num_nodes));
  std::vector<std::thread> threads;
  for (int node = 0; node < run.num_nodes; ++node)
    threads.emplace_back([&, node] { sums[static_cast<std::size_t>(node)] = function(node); });
  for (std::thread& thread : threads) thread.join();
  return sums;
}

std::vector<Sums> over_network(const Training& run) {
  LocalNetwork network(run.num_nodes, {.seed = run.seed});
  return on_all_nodes(run, [&](int node) { return sums_over_network(run, network.node(node)); });
}

std::vector<Sums> over_nccl(const Training& run) {
  FakeNccl nccl({.seed = run.seed, .max_delay_us = run.seed % 2 == 0 ? 50 : 0});
  NcclId id;
  EXPECT_EQ(FakeNccl::table().get_unique_id(&id), NcclResult::kSuccess);
  std::vector<Sums> sums = on_all_nodes(run, [&](int node) { return sums_over_nccl(run, nccl, id, node); });
  EXPECT_THAT(nccl.mistakes(), testing::IsEmpty());
  return sums;
}

// Returns the number of sums that differ in any bit.
std::uint64_t num_different(const std::vector<Sums>& a, const std::vector<Sums>& b) {
  std::uint64_t different = 0;
  for (std::size_t node = 0; node < a.size(); ++node) {
    for (std::size_t use = 0; use < a[node].size(); ++use) {
      const auto& one = a[node][UseId(static_cast<std::uint32_t>(use))];
      const auto& other = b[node][UseId(static_cast<std::uint32_t>(use))];
      EXPECT_EQ(one.size(), other.size());
      for (std::size_t i = 0; i < one.size(); ++i) different += std::memcmp(&one[i], &other[i], sizeof(float)) != 0;
    }
  }
  return different;
}

TEST(ExchangeBits, SumsAreThoseOfTheCoordinatorsExchange) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    const Training run{.num_nodes = 2 + static_cast<int>(seed % 3),
                       .rounds_per_node = 1 + static_cast<int>(seed % 2),
                       .dtype = seed == 6 ? DType::kFloat32 : DType::kBFloat16,
                       .receive_bytes = seed % 2 == 0 ? 0 : std::uint64_t{1} << 20,
                       .seed = seed};
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << run.num_nodes << " nodes");
    EXPECT_EQ(num_different(over_nccl(run), over_network(run)), 0U);
  }
}

// NCCL itself cannot notice this, so the nodes must compare the order of their exchanges.
TEST(ExchangeBits, GradientsOfTheSameLengthInTheWrongOrderChangeTheSumsUnnoticed) {
  Training run{.num_nodes = 3};
  const std::vector<Sums> right = over_nccl(run);
  run.swapping_node = 1;
  EXPECT_GT(num_different(over_nccl(run), right), 0U);
}

}  // namespace
}  // namespace rp::test
