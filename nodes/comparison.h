// nodes/comparison.h
// Compares the nodes of a run before it begins: all must run the same program on the same model, or
// their results would be those of no run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nodes/network.h"

namespace rp {

// What a node says about itself.
struct NodeDescription {
  std::string host;
  int num_workers = 1;
  // What must be the same on all nodes, by name. Names and values contain no line breaks.
  std::vector<std::pair<std::string, std::string>> same{};
};

// Returns the number of workers of each node. Blocks until all nodes have called it: descriptions go up a tree
// (node_tree.h), each node compares those of its children with its own, and the result comes back. Throws rp::Error on
// all nodes: kUserError, naming the first node that differs, and what it differs in; kNoResource if the network fails.
[[nodiscard]] std::vector<int> compare_nodes(NodeNetwork& network, const NodeDescription& own);

}  // namespace rp
