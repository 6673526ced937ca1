// tests/coordinator/toy_nodes.h
// Runs the toy model on several nodes, each with a coordinator, a store and workers of its own, over
// a network of threads.
#pragma once

#include <string>
#include <vector>

#include "tests/coordinator/toy_run.h"
#include "tests/nodes/local_network.h"

namespace rp::test {

struct NodesSettings {
  std::vector<int> workers = {1, 1};  // by node
  LocalNetworkSettings network{};
  std::string plan{};
  bool check_consistency = false;
  Reduce reduce = Reduce::kMpi;
  bool fits_device = false;
  RunSettings::Serve serve = serve_on_cpu;
  // What the first node's program does otherwise than the others'.
  std::function<void(ToyConfig& config)> change_first{};
  AfterRound after_round{};
  std::function<void(LocalNetwork& network)> meanwhile{};  // called in a thread of its own
};

// Returns the results by node, or throws the error of the first node that has one.
[[nodiscard]] std::vector<ToyResult> run_toy_on_nodes(const ToyConfig& config, const NodesSettings& settings);

// Expects the results of the sequential loop on every node.
void expect_reference_on_nodes(const ToyConfig& config, const NodesSettings& settings);

}  // namespace rp::test
