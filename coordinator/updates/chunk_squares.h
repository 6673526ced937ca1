// coordinator/updates/chunk_squares.h
// Holds the sums of squares of a step's gradient, by chunk, as the nodes that own the chunks compute
// them (optimizer/update.h), and a hash of the calls of each node's program. What a node sends is
// contiguous.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "hoststore/catalogue.h"

namespace rp {

class ChunkSquares {
 public:
  // `groups`: the weight groups whose squares are summed. The catalogue must outlive this object.
  ChunkSquares(const Catalogue& catalogue, std::span<const GroupId> groups);

  // Returns what a node sends: its hash, in the bits of a double, and the sums of all chunks that it owns.
  [[nodiscard]] std::span<double> of_node(int node);
  [[nodiscard]] std::uint64_t hash_of(int node) { return std::bit_cast<std::uint64_t>(of_node(node).front()); }
  void set_own_hash(std::uint64_t hash) { of_node(catalogue_.place().node).front() = std::bit_cast<double>(hash); }

  // Return the sums of the chunks of a group that a node owns, and that this node owns.
  [[nodiscard]] std::span<double> of(int node, GroupId group);
  [[nodiscard]] std::span<double> own(GroupId group) { return of(catalogue_.place().node, group); }

  // Returns the sum of squares of a group: its chunks are added in order, whoever owns them.
  // REQUIRES: the sums of all nodes are there.
  [[nodiscard]] double sum(GroupId group);

 private:
  const Catalogue& catalogue_;
  std::vector<std::map<GroupId, std::size_t>> first_;  // by node: where the sums of a group begin
  std::vector<std::size_t> begin_of_node_;             // where its hash is, and the end of the last one
  std::vector<double> sums_;
};

}  // namespace rp
