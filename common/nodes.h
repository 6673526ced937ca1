// common/nodes.h
// Rules by which several nodes share the steps of a run (docs/design/several-nodes.md): which
// elements of a weight group a node owns, and which rounds it computes. Every node computes them
// for itself, with the same result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rp {

inline constexpr int kMaxNodes = 1024;

// One of the nodes of a run. On one node, it owns all elements and computes all rounds.
struct NodePlace {
  int node = 0;
  int num_nodes = 1;
  bool operator==(const NodePlace&) const = default;
};

// Elements [begin, end) of a weight group or tensor.
struct ElementRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  [[nodiscard]] constexpr std::uint64_t size() const { return end - begin; }
  [[nodiscard]] constexpr bool is_empty() const { return begin == end; }
  bool operator==(const ElementRange&) const = default;
};

// The squares of a gradient are added in chunks of this size (optimizer/update.h), so a node owns
// whole chunks. For other passes over a weight group it is only a compromise: a chunk is 1.8 MB of
// work, which is large compared with the cost of handing it out and small compared with a layer.
inline constexpr std::uint64_t kChunkElements = 65'536;

[[nodiscard]] constexpr std::uint64_t num_chunks(std::uint64_t num_elements) {
  return (num_elements + kChunkElements - 1) / kChunkElements;
}

// Returns the elements that a node owns of a weight group: whole chunks, about as many as every
// other node. `first_owner`: the node that owns the first elements, modulo the number of nodes. If
// it changes from group to group, groups of few chunks are spread over all nodes.
[[nodiscard]] ElementRange owned_elements(std::uint64_t num_elements, std::uint64_t first_owner, NodePlace place);

// Returns for each round of a step the node that computes it. `weights`: the speeds of the nodes,
// for example their numbers of workers. Each node gets at least one round, the others go to the
// nodes that would finish them first, and the rounds of each node are spread over the step.
// REQUIRES: all weights are positive; num_rounds >= weights.size().
[[nodiscard]] std::vector<int> deal_rounds(int num_rounds, std::span<const int> weights);

}  // namespace rp
