// launcher/topology.h
// Which cores a run may use, and which of them each worker gets.
#pragma once

#include <optional>
#include <vector>

namespace rp {

// CPUs by their numbers in the operating system.
using CpuList = std::vector<int>;

// The CPUs that this process may run on (its affinity mask).
[[nodiscard]] CpuList allowed_cpus();

// How many cores' worth of work may run at once: the allowed CPUs, cut to the quota (rounded up); at least 1.
[[nodiscard]] int usable_cores(const CpuList& allowed, std::optional<double> cpu_quota);

// The allowed CPUs by NUMA node, nodes without any left out; one list where the machine does not tell.
[[nodiscard]] std::vector<CpuList> cpus_by_node(const CpuList& allowed);

// The CPUs of each worker: workers are spread over the nodes in blocks, and split their node's CPUs among them; where a
// node has fewer CPUs than workers, these share all of it. REQUIRES: at least one node, none empty, num_workers >= 1.
[[nodiscard]] std::vector<CpuList> spread_workers(const std::vector<CpuList>& nodes, int num_workers);

}  // namespace rp
