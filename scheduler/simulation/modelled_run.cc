#include "scheduler/simulation/modelled_run.h"

#include <algorithm>

#include "scheduler/simulation/modelled_machine.h"
#include "scheduler/simulation/modelled_times.h"

namespace rp {

RunWork modelled_run(const std::vector<LayerCost>& costs, const ModelledRun& run) {
  RunWork work{.workload = modelled_workload(costs, run.gpu, run.accumulate),
               .layers = modelled_bytes(costs, run.host),
               .asynchronous = run.host.asynchronous,
               .machine = modelled_machine(run.gpu, run.server, run.pinned_weights)};
  work.workload.num_gpus = run.num_gpus;
  work.workload.recompute = run.host.recompute;
  work.workload.round_microbatches = run.host.num_microbatches;
  work.workload.num_microbatches = run.host.num_microbatches * run.host.rounds_per_step;
  const auto is_trained = [](const LayerBytes& layer) { return layer.gradient > 0; };
  work.workload.first_trained_layer =
      static_cast<int>(std::find_if(work.layers.begin(), work.layers.end(), is_trained) - work.layers.begin());
  return work;
}

}  // namespace rp
