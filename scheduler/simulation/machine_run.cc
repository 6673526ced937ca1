#include "scheduler/simulation/machine_run.h"

#include <algorithm>

#include "common/nodes.h"
#include "scheduler/simulation/predicted_machine.h"
#include "scheduler/simulation/predicted_times.h"

namespace rp {

RunWork run_work(const std::vector<LayerCost>& costs, const MachineRun& run) {
  RunWork work{.workload = predicted_workload(costs, run.gpu, run.accumulate, run.host.num_microbatches),
               .layers = predicted_bytes(costs, run.host),
               .asynchronous = run.host.asynchronous,
               .machine = predicted_machine(run.gpu, run.server, run.pinned_weights)};
  work.workload.num_gpus = run.num_gpus;
  work.workload.recompute = run.host.recompute;
  work.workload.round_microbatches = run.host.num_microbatches;
  const int num_nodes = run.host.place.num_nodes;
  work.workload.num_microbatches =
      run.host.num_microbatches * rounds_of_first_node(run.host.rounds_per_step, num_nodes);
  if (num_nodes > 1) work.nodes = predicted_nodes(run.network, num_nodes, run.host.rounds_per_step);
  const auto is_trained = [](const LayerBytes& layer) { return layer.gradient > 0; };
  work.workload.first_trained_layer =
      static_cast<int>(std::find_if(work.layers.begin(), work.layers.end(), is_trained) - work.layers.begin());
  return work;
}

}  // namespace rp
