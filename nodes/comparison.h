// nodes/comparison.h
// Compares the nodes of a run before it begins: all must run the same program on the same model, or
// their results would be those of no run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nodes/network.h"

namespace rp {

// What a node tells the others about itself.
struct NodeDescription {
  std::string host;
  int num_workers = 1;
  // What must be the same on all nodes, by name. Names and values contain no line breaks.
  std::vector<std::pair<std::string, std::string>> same{};
};

// Sends `own` to all nodes, and returns the descriptions of all nodes. Blocks until all nodes have
// called it. Throws rp::Error: kUserError, naming the first difference between a node and the first
// one; kNoResource if the network fails.
[[nodiscard]] std::vector<NodeDescription> compare_nodes(NodeNetwork& network, const NodeDescription& own);

}  // namespace rp
