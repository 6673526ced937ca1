// nodes/node_tree.h
// Defines the tree along which decisions go from the first node to all others, and answers come back: the binomial
// tree, so a node has at most log2(n) children, and so many nodes lie between it and the first one. The nodes under a
// node have the numbers that follow its own.
#pragma once

#include <vector>

#include "common/nodes.h"

namespace rp {

// REQUIRES: node > 0.
[[nodiscard]] constexpr int parent_of(int node) { return node & (node - 1); }

// Returns the children of a node, in ascending order.
[[nodiscard]] inline std::vector<int> children_of(NodePlace place) {
  std::vector<int> children;
  for (int bit = 1; place.node + bit < place.num_nodes && (place.node & bit) == 0; bit *= 2)
    children.push_back(place.node + bit);
  return children;
}

}  // namespace rp
