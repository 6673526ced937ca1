#include "common/nodes.h"

#include <algorithm>
#include <cstddef>

#include "common/check.h"

namespace rp {

ElementRange owned_elements(std::uint64_t num_elements, std::uint64_t first_owner, NodePlace place) {
  const auto num_nodes = static_cast<std::uint64_t>(place.num_nodes);
  const std::uint64_t part = (static_cast<std::uint64_t>(place.node) + num_nodes - first_owner % num_nodes) % num_nodes;
  const std::uint64_t chunks = num_chunks(num_elements);
  const auto begin_of = [&](std::uint64_t index) {
    return std::min(chunks * index / num_nodes * kChunkElements, num_elements);
  };
  return {.begin = begin_of(part), .end = begin_of(part + 1)};
}

std::vector<int> deal_rounds(int num_rounds, std::span<const int> weights) {
  RP_ASSERT(num_rounds >= static_cast<int>(weights.size()) && std::ranges::min(weights) > 0);
  // Products are compared instead of quotients, because the result must be the same on every machine.
  std::vector<std::int64_t> counts(weights.size(), 1);
  for (auto left = num_rounds - static_cast<int>(weights.size()); left > 0; --left) {
    std::size_t best = 0;
    for (std::size_t node = 1; node < weights.size(); ++node) {
      if ((counts[node] + 1) * weights[best] < (counts[best] + 1) * weights[node]) best = node;
    }
    ++counts[best];
  }
  // Round j of a node's c rounds is due at (2 j + 1) / 2 c of the step.
  struct Due {
    std::int64_t place = 0;
    int node = 0;
  };
  std::vector<Due> rounds;
  for (std::size_t node = 0; node < counts.size(); ++node) {
    for (std::int64_t j = 0; j < counts[node]; ++j) rounds.push_back({2 * j + 1, static_cast<int>(node)});
  }
  std::ranges::stable_sort(rounds, [&counts](const Due& a, const Due& b) {
    return a.place * counts[static_cast<std::size_t>(b.node)] < b.place * counts[static_cast<std::size_t>(a.node)];
  });
  std::vector<int> nodes;
  for (const Due& round : rounds) nodes.push_back(round.node);
  return nodes;
}

}  // namespace rp
