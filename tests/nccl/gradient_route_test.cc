#include "nccl/gradient_route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

namespace rp::test {
namespace {

// Returns the catalogues of all nodes of a run.
std::vector<Catalogue> catalogues(const std::vector<std::uint64_t>& sizes, DType dtype, int num_nodes) {
  PipelineRequest request{.name = "model", .layers = {}, .with_sums = true};
  for (const std::uint64_t size : sizes) {
    const ParameterRequest frozen{.name = "f", .dtype = DType::kFloat32, .shape = {100'000}, .is_trained = false};
    request.layers.push_back(
        {.name = "linear",
         .parameters = {{.name = "w", .dtype = dtype, .shape = {static_cast<std::int64_t>(size)}}, frozen}});
  }
  std::vector<Catalogue> all;
  for (int node = 0; node < num_nodes; ++node)
    all.push_back(Catalogue::lay_out(std::vector{request}, {.node = node, .num_nodes = num_nodes}, Reduce::kNccl));
  return all;
}

// Bytes [begin, end) of memory, and where they come from: bytes from `source` on of a node's
// gradient.
struct Piece {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  int node = 0;
  std::uint64_t source = 0;
  auto operator<=>(const Piece&) const = default;
};

bool overlap(std::vector<Piece> pieces) {
  std::ranges::sort(pieces);
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i].begin < pieces[i - 1].end) return true;
  }
  return false;
}

// Where the parts of a use's gradient end up on every node, if all exchanges are made.
class Exchanges {
 public:
  Exchanges(const std::vector<Catalogue>& catalogues, std::uint64_t receive_bytes) : catalogues_(catalogues) {
    for (const Catalogue& catalogue : catalogues_) routes_.emplace_back(catalogue, receive_bytes);
  }

  [[nodiscard]] const GradientRoute& route(int node) const { return routes_[static_cast<std::size_t>(node)]; }
  [[nodiscard]] int num_nodes() const { return static_cast<int>(routes_.size()); }

  // Returns what is written to the host's buffer of each node.
  [[nodiscard]] std::vector<std::vector<Piece>> of(GroupId group) const {
    std::vector<std::vector<Piece>> hosts(routes_.size());
    for (std::uint64_t piece = 0; piece < route(0).num_pieces(group); ++piece) {
      bool moves = false;
      for (int node = 0; node < num_nodes(); ++node) {
        const std::vector<Piece> received = received_by(node, group, piece);
        moves = moves || !received.empty();
        EXPECT_FALSE(overlap(received));
        for (const GradientRoute::Download& each : route(node).downloads(group, piece, gradient(), buffer())) {
          Piece written{.begin = each.to, .end = each.to + each.from.size(), .node = each.node};
          if (each.node == node) {
            written.source = static_cast<std::uint64_t>(each.from.data() - gradient());
          } else {
            const auto at = static_cast<std::uint64_t>(each.from.data() - buffer());
            const auto whole = std::ranges::find(received, each.node, &Piece::node);
            if (whole == received.end() || whole->begin != at || whole->end != at + each.from.size()) {
              ADD_FAILURE() << "node " << node << " downloads what it has not received from node " << each.node;
              continue;
            }
            written.source = whole->source;
          }
          hosts[static_cast<std::size_t>(node)].push_back(written);
        }
      }
      EXPECT_TRUE(moves) << "piece " << piece << " is empty on all nodes";
    }
    return hosts;
  }

 private:
  // Addresses that are compared, but not used.
  [[nodiscard]] static const std::byte* gradient() {
    return reinterpret_cast<const std::byte*>(std::uint64_t{1} << 40);
  }
  [[nodiscard]] static std::byte* buffer() { return reinterpret_cast<std::byte*>(std::uint64_t{1} << 42); }

  [[nodiscard]] ExchangePart part(int node, GroupId group, std::uint64_t piece, int peer) const {
    const std::vector<ExchangePart> parts = route(node).parts(group, piece, gradient(), buffer());
    EXPECT_EQ(std::ranges::count(parts, peer, &ExchangePart::node), 1);
    EXPECT_EQ(parts.size(), routes_.size() - 1);
    return *std::ranges::find(parts, peer, &ExchangePart::node);
  }

  // Returns what a node receives in a piece, by place in its memory for received parts.
  [[nodiscard]] std::vector<Piece> received_by(int node, GroupId group, std::uint64_t piece) const {
    std::vector<Piece> received;
    for (int peer = 0; peer < num_nodes(); ++peer) {
      if (peer == node) continue;
      const ExchangePart mine = part(node, group, piece, peer);
      const ExchangePart theirs = part(peer, group, piece, node);
      EXPECT_EQ(mine.received.size(), theirs.sent.size());
      if (mine.received.empty()) continue;
      const auto begin = static_cast<std::uint64_t>(mine.received.data() - buffer());
      EXPECT_LE(begin + mine.received.size(), route(node).receive_buffer_bytes());
      received.push_back({.begin = begin,
                          .end = begin + mine.received.size(),
                          .node = peer,
                          .source = static_cast<std::uint64_t>(theirs.sent.data() - gradient())});
    }
    return received;
  }

  const std::vector<Catalogue>& catalogues_;
  std::vector<GradientRoute> routes_;
};

// Each element that a node owns arrives there once from every node, and nothing else does.
void expect_each_once(const std::vector<Catalogue>& catalogues, const Exchanges& exchanges, GroupId group) {
  const std::vector<std::vector<Piece>> hosts = exchanges.of(group);
  for (int node = 0; node < exchanges.num_nodes(); ++node) {
    const Catalogue& catalogue = catalogues[static_cast<std::size_t>(node)];
    const GradientRoute& route = exchanges.route(node);
    const std::uint64_t bytes = dtype_bytes(catalogue.weight_groups()[group].dtype);
    const ElementRange owned = catalogue.owned(group);
    EXPECT_EQ(route.num_pieces(group), exchanges.route(0).num_pieces(group));
    std::vector<Piece> pieces = hosts[static_cast<std::size_t>(node)];
    std::ranges::sort(pieces);
    std::uint64_t at = 0;
    for (const Piece& piece : pieces) {
      ASSERT_EQ(piece.begin, at) << "node " << node;
      const std::uint64_t in_part = at - catalogue.part_offset(group, piece.node);
      ASSERT_LT(in_part, catalogue.part_offset(group, 1))
          << "a part of node " << piece.node << " is outside of its place";
      ASSERT_EQ(piece.source, owned.begin * bytes + in_part) << "node " << node << ", from node " << piece.node;
      at = piece.end;
    }
    EXPECT_EQ(at, catalogue.gradient_buffer_bytes(group));
    EXPECT_EQ(at, owned.size() * bytes * static_cast<std::uint64_t>(exchanges.num_nodes()));
  }
}

TEST(GradientRoute, BringsEachElementToItsOwnerOnceFromEveryNode) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](std::uint64_t low, std::uint64_t high) { return low + random() % (high - low + 1); };
    const int num_nodes = static_cast<int>(draw(2, seed % 10 == 0 ? 33 : 7));
    const DType dtype = draw(0, 1) == 0 ? DType::kBFloat16 : DType::kFloat32;
    std::vector<std::uint64_t> sizes = {draw(1, 5000), kChunkElements * draw(1, 8), draw(1, 40 * kChunkElements)};
    const std::uint64_t receive_bytes = draw(0, 64) * kChunkElements;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << num_nodes << " nodes, " << sizes[0] << ", "
                                    << sizes[1] << " and " << sizes[2] << " elements of " << dtype_bytes(dtype)
                                    << " bytes, " << receive_bytes << " bytes to receive");
    const std::vector<Catalogue> all = catalogues(sizes, dtype, num_nodes);
    const Exchanges exchanges(all, receive_bytes);
    const std::uint64_t chunks_bytes = static_cast<std::uint64_t>(num_nodes - 1) * kChunkElements * dtype_bytes(dtype);
    for (int node = 0; node < num_nodes; ++node)
      EXPECT_LE(exchanges.route(node).receive_buffer_bytes(), std::max(receive_bytes, chunks_bytes));
    for (const GroupId group : all[0].trained_groups(0)) expect_each_once(all, exchanges, group);
  }
}

TEST(GradientRoute, GroupOfFewChunksHasOwnersOnlyAmongSomeNodes) {
  const std::vector<Catalogue> all = catalogues({96}, DType::kBFloat16, 4);
  const GroupId group = all[0].trained_groups(0).front();
  std::vector<std::uint64_t> bytes;
  for (const Catalogue& catalogue : all) {
    const GradientRoute route(catalogue, 1 << 20);
    EXPECT_EQ(route.num_pieces(group), 1U);
    bytes.push_back(catalogue.gradient_buffer_bytes(group));
  }
  EXPECT_THAT(bytes, testing::UnorderedElementsAre(0, 0, 0, 4 * 96 * 2));
}

TEST(GradientRoute, PiecesAreAsLongAsTheMemoryForReceivedPartsPermits) {
  const std::vector<Catalogue> all = catalogues({64 * kChunkElements}, DType::kBFloat16, 2);
  const GroupId group = all[0].trained_groups(0).front();
  const auto pieces = [&](std::uint64_t receive_bytes) {
    const GradientRoute route(all[1], receive_bytes);
    return std::tuple{route.num_pieces(group), route.receive_buffer_bytes()};
  };
  constexpr std::uint64_t kChunkBytes = 2 * kChunkElements;
  EXPECT_EQ(pieces(0), std::tuple(32U, kChunkBytes));
  EXPECT_EQ(pieces(8 * kChunkBytes), std::tuple(4U, 8 * kChunkBytes));
  EXPECT_EQ(pieces(32 * kChunkBytes), std::tuple(1U, 32 * kChunkBytes));
  EXPECT_EQ(pieces(1000 * kChunkBytes), std::tuple(1U, 32 * kChunkBytes));
}

// The parts are added in the order of the nodes, and rounds must be added in theirs.
TEST(GradientRoute, OrderOfThePartsIsThatOfTheRoundsOfEqualNodes) {
  for (int num_nodes = 2; num_nodes <= 16; ++num_nodes) {
    for (int rounds_per_node = 1; rounds_per_node <= 4; ++rounds_per_node) {
      const std::vector<int> workers(static_cast<std::size_t>(num_nodes), 3);
      const std::vector<int> nodes = deal_rounds(num_nodes * rounds_per_node, workers);
      for (int round = 0; round < num_nodes * rounds_per_node; ++round)
        ASSERT_EQ(nodes[static_cast<std::size_t>(round)], round % num_nodes) << num_nodes << " nodes, round " << round;
    }
  }
}

TEST(GradientRoute, MovesNothingOnOneNode) {
  const std::vector<Catalogue> all = catalogues({3 * kChunkElements}, DType::kBFloat16, 1);
  const GradientRoute route(all[0], 1 << 20);
  EXPECT_EQ(route.num_pieces(all[0].trained_groups(0).front()), 0U);
  EXPECT_EQ(route.receive_buffer_bytes(), 0U);
}

}  // namespace
}  // namespace rp::test
