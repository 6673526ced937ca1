#include "launcher/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <memory>

#include "common/check.h"

namespace rp {

std::vector<CpuList> cpus_by_node(const CpuList& allowed) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {allowed};
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> owner(topology, hwloc_topology_destroy);
  if (hwloc_topology_load(topology) != 0) return {allowed};
  std::vector<CpuList> nodes;
  std::size_t num_placed = 0;
  for (hwloc_obj_t node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, nullptr); node != nullptr;
       node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) {
    CpuList cpus;
    for (const int cpu : allowed) {
      if (hwloc_bitmap_isset(node->cpuset, static_cast<unsigned>(cpu)) != 0) cpus.push_back(cpu);
    }
    num_placed += cpus.size();
    if (!cpus.empty()) nodes.push_back(std::move(cpus));
  }
  // Nodes that overlap or leave a CPU out are no ground for a binding.
  if (num_placed != allowed.size()) return {allowed};
  return nodes;
}

std::vector<CpuList> spread_workers(const std::vector<CpuList>& nodes, int num_workers) {
  RP_ASSERT(!nodes.empty() && num_workers >= 1);
  const std::size_t num = static_cast<std::size_t>(num_workers);
  std::vector<CpuList> places;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    // Workers [begin, end) live on node n.
    const std::size_t begin = n * num / nodes.size();
    const std::size_t end = (n + 1) * num / nodes.size();
    const CpuList& cpus = nodes[n];
    const std::size_t sharers = end - begin;
    for (std::size_t i = 0; i < sharers; ++i) {
      if (cpus.size() < sharers) {
        places.push_back(cpus);
        continue;
      }
      const auto first = static_cast<std::ptrdiff_t>(i * cpus.size() / sharers);
      const auto last = static_cast<std::ptrdiff_t>((i + 1) * cpus.size() / sharers);
      places.emplace_back(cpus.begin() + first, cpus.begin() + last);
    }
  }
  return places;
}

}  // namespace rp
