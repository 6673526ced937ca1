// launcher/machine/topology.h
// Assigns the usable cores to workers.
#pragma once

#include <string>
#include <vector>

#include "common/system/usable_cores.h"

namespace rp {

struct NumaNode {
  int number = -1;  // as numbered by the operating system; -1: unknown
  CpuList cpus{};   // its usable CPUs
  bool operator==(const NumaNode&) const = default;
};

// Returns the NUMA nodes that have an allowed CPU; a single node if the topology is unknown.
[[nodiscard]] std::vector<NumaNode> numa_nodes(const CpuList& allowed);

// Returns the CPUs of each worker. The workers are spread over the nodes in blocks, and the workers
// of a node split its CPUs. If a node has fewer CPUs than workers, each of its workers gets all of
// them. REQUIRES: at least one node, no empty node, num_workers >= 1.
[[nodiscard]] std::vector<CpuList> spread_workers(const std::vector<NumaNode>& nodes, int num_workers);

// Returns the CPUs of each worker, where node_of_worker[w] is the number of the node of the GPU of
// worker w. The workers of a node split its CPUs as in spread_workers(). A worker gets no CPUs, so
// is not bound, if its node is unknown (-1) or has no usable CPU. If there is only one node, all
// workers are placed on it.
[[nodiscard]] std::vector<CpuList> place_beside_gpus(const std::vector<NumaNode>& nodes,
                                                     const std::vector<int>& node_of_worker);

// Returns, for example, "0-3,8"; "any" for an empty list.
[[nodiscard]] std::string cpu_text(const CpuList& cpus);

}  // namespace rp
