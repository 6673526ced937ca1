// coordinator/updates/chunk_squares.h
// Holds the sums of squares of a step's gradient, by chunk, as the nodes that own the chunks compute
// them (optimizer/update.h). What a node computes is contiguous, so that it can be sent.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "hoststore/catalogue.h"

namespace rp {

class ChunkSquares {
 public:
  // `groups`: the weight groups whose squares are summed. The catalogue must outlive this object.
  ChunkSquares(const Catalogue& catalogue, std::span<const GroupId> groups);

  // Returns the sums of all chunks that a node owns; those of one group; and those of one group on this node.
  [[nodiscard]] std::span<double> of_node(int node);
  [[nodiscard]] std::span<double> of(int node, GroupId group);
  [[nodiscard]] std::span<double> own(GroupId group) { return of(catalogue_.place().node, group); }

  // Returns the sum of squares of a group: its chunks are added in order, whoever owns them.
  // REQUIRES: the sums of all nodes are there.
  [[nodiscard]] double sum(GroupId group);

 private:
  const Catalogue& catalogue_;
  std::vector<std::map<GroupId, std::size_t>> first_;  // by node: where the sums of a group begin
  std::vector<std::size_t> begin_of_node_;             // and the end of the last one
  std::vector<double> sums_;
};

}  // namespace rp
