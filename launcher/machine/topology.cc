#include "launcher/machine/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <memory>

#include "common/check.h"
#include "common/text.h"

namespace rp {

namespace {

// Returns the CPUs of the i-th of `sharers` workers that split the CPUs; all of them if there are
// fewer CPUs than workers.
CpuList share_of(const CpuList& cpus, std::size_t i, std::size_t sharers) {
  if (cpus.size() < sharers) return cpus;
  const auto first = static_cast<std::ptrdiff_t>(i * cpus.size() / sharers);
  const auto last = static_cast<std::ptrdiff_t>((i + 1) * cpus.size() / sharers);
  return {cpus.begin() + first, cpus.begin() + last};
}

}  // namespace

std::vector<NumaNode> numa_nodes(const CpuList& allowed) {
  hwloc_topology_t topology = nullptr;
  std::vector<NumaNode> unknown{{.number = -1, .cpus = allowed}};
  if (hwloc_topology_init(&topology) != 0) return unknown;
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> owner(topology, hwloc_topology_destroy);
  if (hwloc_topology_load(topology) != 0) return unknown;
  std::vector<NumaNode> nodes;
  std::size_t num_placed = 0;
  for (hwloc_obj_t node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, nullptr); node != nullptr;
       node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) {
    CpuList cpus;
    for (const int cpu : allowed) {
      if (hwloc_bitmap_isset(node->cpuset, static_cast<unsigned>(cpu)) != 0) cpus.push_back(cpu);
    }
    num_placed += cpus.size();
    if (!cpus.empty()) nodes.push_back({.number = static_cast<int>(node->os_index), .cpus = std::move(cpus)});
  }
  // If nodes overlap or leave out a CPU, workers cannot be bound by them.
  if (num_placed != allowed.size()) return unknown;
  return nodes;
}

std::vector<CpuList> spread_workers(const std::vector<NumaNode>& nodes, int num_workers) {
  RP_ASSERT(!nodes.empty() && num_workers >= 1);
  const std::size_t num = static_cast<std::size_t>(num_workers);
  std::vector<CpuList> places;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    // Workers [begin, end) are placed on node n.
    const std::size_t begin = n * num / nodes.size();
    const std::size_t end = (n + 1) * num / nodes.size();
    for (std::size_t i = 0; i < end - begin; ++i) places.push_back(share_of(nodes[n].cpus, i, end - begin));
  }
  return places;
}

std::vector<CpuList> place_beside_gpus(const std::vector<NumaNode>& nodes, const std::vector<int>& node_of_worker) {
  RP_ASSERT(!nodes.empty());
  std::vector<std::vector<std::size_t>> workers(nodes.size());  // by index in `nodes`
  for (std::size_t w = 0; w < node_of_worker.size(); ++w) {
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const bool is_beside = node_of_worker[w] >= 0 && nodes[n].number == node_of_worker[w];
      if (is_beside || nodes.size() == 1) workers[n].push_back(w);
    }
  }
  std::vector<CpuList> places(node_of_worker.size());
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (std::size_t i = 0; i < workers[n].size(); ++i) {
      places[workers[n][i]] = share_of(nodes[n].cpus, i, workers[n].size());
    }
  }
  return places;
}

std::string cpu_text(const CpuList& cpus) {
  if (cpus.empty()) return "any";
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += cat(text.empty() ? "" : ",", cpus[i]);
    if (end > i + 1) text += cat("-", cpus[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace rp
