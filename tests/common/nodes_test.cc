#include "common/nodes.h"
#include "common/network_profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace rp {
namespace {

TEST(OwnedElements, AreWholeChunksThatTogetherAreAllElements) {
  for (const std::uint64_t num_elements : {std::uint64_t{0}, std::uint64_t{1}, kChunkElements, kChunkElements + 1,
                                           7 * kChunkElements, 1000 * kChunkElements - 5}) {
    for (const int num_nodes : {1, 2, 3, 4, 7, 1000}) {
      for (const std::uint64_t first_owner : {0, 1, 5}) {
        std::set<std::pair<std::uint64_t, std::uint64_t>> ranges;
        std::uint64_t sum = 0;
        for (int node = 0; node < num_nodes; ++node) {
          const ElementRange owned = owned_elements(num_elements, first_owner, {node, num_nodes});
          EXPECT_EQ(owned.begin % kChunkElements, 0U) << "or it is at the end";
          sum += owned.size();
          if (!owned.is_empty()) ranges.emplace(owned.begin, owned.end);
          EXPECT_LE(num_chunks(owned.size()), num_chunks(num_elements) / num_nodes + 1);
          EXPECT_GE(num_chunks(owned.size()), num_chunks(num_elements) / num_nodes);
        }
        EXPECT_EQ(sum, num_elements);
        std::uint64_t end = 0;
        for (const auto& [range_begin, range_end] : ranges) {
          EXPECT_EQ(range_begin, end);
          end = range_end;
        }
        EXPECT_EQ(end, num_elements);
      }
    }
  }
}

TEST(OwnedElements, OfOneNodeAreAll) {
  EXPECT_EQ(owned_elements(12'345'678, 3, {}), (ElementRange{.begin = 0, .end = 12'345'678}));
}

TEST(OwnedElements, OfSmallGroupsBelongToOtherNodesInTurn) {
  std::vector<int> num_owned(4);
  for (std::uint64_t group = 0; group < 8; ++group) {
    for (int node = 0; node < 4; ++node) {
      if (!owned_elements(100, group, {node, 4}).is_empty()) ++num_owned[static_cast<std::size_t>(node)];
    }
  }
  EXPECT_EQ(num_owned, std::vector<int>(4, 2));
}

TEST(DealRounds, GivesEachNodeOneAndTheOthersByTheirSpeeds) {
  const auto deal = [](int num_rounds, const std::vector<int>& weights) { return deal_rounds(num_rounds, weights); };
  EXPECT_EQ(deal(1, {8}), std::vector<int>{0});
  EXPECT_EQ(deal(3, {1, 1, 1}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(deal(6, {1, 1}), (std::vector<int>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(deal(6, {2, 1}), (std::vector<int>{0, 1, 0, 0, 1, 0}));
  const std::vector<int> many = deal(100, {8, 8, 4, 1});
  for (const auto& [node, num] : {std::pair{0, 39}, {1, 38}, {2, 19}, {3, 4}}) {
    EXPECT_EQ(std::ranges::count(many, node), num) << node;
  }
}

TEST(EqualNodes, HaveTheRoundsThatAreDealtToThem) {
  for (const int num_nodes : {1, 2, 3, 5, 16}) {
    for (int num_rounds = num_nodes; num_rounds <= 4 * num_nodes; ++num_rounds) {
      const std::vector<int> dealt = deal_rounds(num_rounds, std::vector<int>(static_cast<std::size_t>(num_nodes), 1));
      const auto rounds_of = [&](int node) { return static_cast<int>(std::ranges::count(dealt, node)); };
      EXPECT_EQ(rounds_of_first_node(num_rounds, num_nodes), rounds_of(0));
      for (int own = 0; own <= num_rounds; ++own) {
        int with_round = 0;
        for (int node = 0; node < num_nodes; ++node) with_round += rounds_of(node) > own ? 1 : 0;
        EXPECT_EQ(nodes_with_round(own, num_rounds, num_nodes), with_round);
      }
    }
  }
}

TEST(Pieces, OfGradientsAreWholeChunksOfAtMostAMebibyte) {
  EXPECT_EQ(message_elements(2), 2 * kChunkElements);
  EXPECT_EQ(message_elements(4), kChunkElements);
  EXPECT_EQ(message_elements(8), kChunkElements) << "never nothing";
  EXPECT_EQ(longest_piece_bytes(100 * kChunkElements, 2), kMessageBytes);
  EXPECT_EQ(longest_piece_bytes(kChunkElements + 5, 2), 2 * (kChunkElements + 5)) << "no node owns more";
  EXPECT_EQ(receive_buffers_bytes(kMessageBytes, 1), 0U);
  EXPECT_EQ(receive_buffers_bytes(kMessageBytes, 4), 3 * 64 * kMessageBytes);
  EXPECT_EQ(receive_buffers_bytes(kMessageBytes, 101), 1000 * kMessageBytes);
  EXPECT_EQ(receive_buffers_bytes(kMessageBytes, kMaxNodes), (kMaxNodes - 1) * kMessageBytes);
}

TEST(Network, HasARateAndALatency) {
  EXPECT_EQ(network_of("10gbit"), (NetworkProfile{.gbs = 1.25, .latency_us = 70}));
  EXPECT_EQ(network_of("25Gbit/s,100us"), (NetworkProfile{.gbs = 3.125, .latency_us = 100}));
  EXPECT_EQ(network_of("3.1GB/s,1ms"), (NetworkProfile{.gbs = 3.1, .latency_us = 1000}));
  EXPECT_EQ(network_of("1GB/s,0us"), (NetworkProfile{.gbs = 1, .latency_us = 0}));
  for (const char* word :
       {"", "10", "0gbit", "-1gbit", "10gbit,", "10gbit,5", "10gbit,-5us", "ten gbit", "1e9gbit", "nangbit"})
    EXPECT_EQ(network_of(word), std::nullopt) << word;
}

}  // namespace
}  // namespace rp
