// launcher/machine/topology.h
// Which of the usable cores each worker gets.
#pragma once

#include <string>
#include <vector>

#include "common/system/usable_cores.h"

namespace rp {

struct NumaNode {
  int number = -1;  // the operating system's; -1: it does not tell
  CpuList cpus{};   // those that may be used
  bool operator==(const NumaNode&) const = default;
};

// The NUMA nodes with an allowed CPU; one node where the machine does not tell.
[[nodiscard]] std::vector<NumaNode> numa_nodes(const CpuList& allowed);

// The CPUs of each worker: workers are spread over the nodes in blocks, and split their node's CPUs among them; where a
// node has fewer CPUs than workers, these share all of it. REQUIRES: at least one node, none empty, num_workers >= 1.
[[nodiscard]] std::vector<CpuList> spread_workers(const std::vector<NumaNode>& nodes, int num_workers);

// The CPUs of each worker, whose GPU is on the node with the number `node_of_worker[w]`: the workers of a node split
// its CPUs likewise. None, so not bound, for a node that is unknown (-1) or has no CPU that may be used; but where
// there is one node only, that one.
[[nodiscard]] std::vector<CpuList> place_beside_gpus(const std::vector<NumaNode>& nodes,
                                                     const std::vector<int>& node_of_worker);

// "0-3,8"; "any" for none.
[[nodiscard]] std::string cpu_text(const CpuList& cpus);

}  // namespace rp
