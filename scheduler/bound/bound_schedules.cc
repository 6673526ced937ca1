#include "scheduler/bound/bound_schedules.h"

#include <numeric>

#include "common/text.h"
#include "roundpipe/error.h"
#include "scheduler/bound/bound_orders.h"

namespace rp {

void check_bound_stages(BoundSchedule schedule, const Workload& workload, const std::vector<int>& stages) {
  const auto refuse = [](const std::string& what) { throw Error(ExitCode::kUsage, what); };
  const bool is_looped = schedule == BoundSchedule::kInterleaved || schedule == BoundSchedule::kLoopedBfs;
  const int num_stages = static_cast<int>(stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i] < 0 || (stages[i] == 0 && i + 1 < stages.size())) {
      refuse(cat("stage ", i, " has ", stages[i], " layers; only the last one, which has the head, may have none"));
    }
  }
  if (const int sum = std::accumulate(stages.begin(), stages.end(), 0); sum != workload.num_layers()) {
    refuse(cat("the stages have ", sum, " layers together, the model has ", workload.num_layers()));
  }
  if (is_looped ? num_stages == 0 || num_stages % workload.num_gpus != 0 : num_stages != workload.num_gpus) {
    refuse(cat("there are ", num_stages, " stages; ", is_looped ? "a multiple of " : "", workload.num_gpus,
               " are needed, for ", workload.num_gpus, " GPUs"));
  }
  if (schedule == BoundSchedule::kInterleaved && workload.num_microbatches % workload.num_gpus != 0) {
    refuse(cat("interleaved 1F1B needs a multiple of ", workload.num_gpus, " microbatches, not ",
               workload.num_microbatches));
  }
}

TaskGraph bound_schedule(BoundSchedule schedule, const Workload& workload, const std::vector<int>& stages) {
  check_bound_stages(schedule, workload, stages);
  const BoundOrders orders(schedule, workload.num_gpus, static_cast<int>(stages.size()), workload.num_microbatches);
  const std::vector<BoundWork> works = bound_works(workload, stages, orders.splits_backward());
  const int num_stages = orders.num_stages(), num_microbatches = orders.num_microbatches();
  TaskGraph graph{.tasks = {}, .order = orders.by_gpu(), .hop = workload.hop};
  graph.tasks.reserve(orders.num_tasks());
  for (int stage = 0; stage < num_stages; ++stage) {
    for (int m = 0; m < num_microbatches; ++m) {
      graph.add({.gpu = orders.gpu_of(stage),
                 .stage = stage,
                 .microbatch = m,
                 .work = works[stage].forward,
                 .input = stage > 0 ? orders.forward(stage - 1, m) : -1});
    }
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    const BoundWork& work = works[stage];
    for (int m = 0; m < num_microbatches; ++m) {
      graph.add({.gpu = orders.gpu_of(stage),
                 .kind = orders.splits_backward() ? TaskKind::kInputGradient : TaskKind::kBackward,
                 .stage = stage,
                 .microbatch = m,
                 .work = work.backward,
                 .input = stage + 1 == num_stages ? orders.forward(stage, m) : orders.backward(stage + 1, m),
                 .other_input = orders.forward(num_stages - 1, m),
                 .recompute = work.recompute});
    }
  }
  for (int stage = 0; orders.splits_backward() && stage < num_stages; ++stage) {
    for (int m = 0; m < num_microbatches; ++m) {
      graph.add({.gpu = orders.gpu_of(stage),
                 .kind = TaskKind::kWeightGradient,
                 .stage = stage,
                 .microbatch = m,
                 .work = works[stage].weight,
                 .input = orders.backward(stage, m)});
    }
  }
  return graph;
}

}  // namespace rp
