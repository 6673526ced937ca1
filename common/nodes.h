// common/nodes.h
// Rules by which several nodes share the steps of a run (docs/design/several-nodes.md): which
// elements of a weight group a node owns, and which rounds it computes. Every node computes them
// for itself, with the same result.
#pragma once

#include <algorithm>
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

// How the gradients of all nodes reach the node that owns their elements: the coordinators send them to each other, or
// the GPUs exchange them before they are downloaded (docs/design/several-nodes.md#nccl-between-gpus).
enum class Reduce : std::uint32_t { kMpi, kNccl };

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

// Gradients and weights are sent in pieces of at most so many bytes. With longer pieces in both
// directions, Open MPI's TCP reaches only a part of a link (docs/design/several-nodes.md).
inline constexpr std::uint64_t kMessageBytes = std::uint64_t{1} << 18;

// So many of these are on their way to a node at a time, of each kind: enough to fill a link of 10 Gbit/s in both
// directions. With more, the directions wait for each other.
inline constexpr int kMessagesOnWay = 8;

// Returns the elements of the longest piece: whole chunks, like what a node owns.
[[nodiscard]] constexpr std::uint64_t message_elements(std::uint64_t element_bytes) {
  return std::max(kMessageBytes / element_bytes / kChunkElements, std::uint64_t{1}) * kChunkElements;
}

// Returns the number of buffers that a pipeline has for gradients of each other node. Some are filled while others are
// added. A link of 25 Gbit/s fills 64 of them in 5 ms; with many nodes, there are more of them than a link can fill.
[[nodiscard]] constexpr int buffers_per_node(int num_nodes) {
  return std::clamp(1024 / std::max(1, num_nodes - 1), 1, 64);
}

// Returns the bytes of the longest piece of a gradient of which a node owns so many elements.
[[nodiscard]] constexpr std::uint64_t longest_piece_bytes(std::uint64_t num_owned, std::uint64_t element_bytes) {
  return std::min(message_elements(element_bytes), num_owned) * element_bytes;
}
// Returns the length of all buffers of a pipeline. `longest_piece`: of all its gradients, in bytes.
[[nodiscard]] constexpr std::uint64_t receive_buffers_bytes(std::uint64_t longest_piece, int num_nodes) {
  return static_cast<std::uint64_t>((num_nodes - 1) * buffers_per_node(num_nodes)) * longest_piece;
}

// Returns for each round of a step the node that computes it. `weights`: the speeds of the nodes,
// for example their numbers of workers. Each node gets at least one round, the others go to the
// nodes that would finish them first, and the rounds of each node are spread over the step.
// REQUIRES: all weights are positive; num_rounds >= weights.size().
[[nodiscard]] std::vector<int> deal_rounds(int num_rounds, std::span<const int> weights);

// Returns how many nodes compute a round number `own` (from 0) of theirs in a step whose rounds
// deal_rounds() deals to equal nodes. Without a list of all rounds, which may be long.
[[nodiscard]] constexpr int nodes_with_round(int own, int num_rounds, int num_nodes) {
  return std::clamp(num_rounds - own * num_nodes, 0, num_nodes);
}
// Returns the number of rounds that the first of such nodes computes. No node computes more.
[[nodiscard]] constexpr int rounds_of_first_node(int num_rounds, int num_nodes) {
  return (num_rounds + num_nodes - 1) / num_nodes;
}

}  // namespace rp
