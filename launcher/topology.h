// launcher/topology.h
// Which of the usable cores each worker gets.
#pragma once

#include <vector>

#include "common/usable_cores.h"

namespace rp {

// The allowed CPUs by NUMA node, nodes without any left out; one list where the machine does not tell.
[[nodiscard]] std::vector<CpuList> cpus_by_node(const CpuList& allowed);

// The CPUs of each worker: workers are spread over the nodes in blocks, and split their node's CPUs among them; where a
// node has fewer CPUs than workers, these share all of it. REQUIRES: at least one node, none empty, num_workers >= 1.
[[nodiscard]] std::vector<CpuList> spread_workers(const std::vector<CpuList>& nodes, int num_workers);

}  // namespace rp
