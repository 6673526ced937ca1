#include "scheduler/bound/bound_cost.h"

#include <algorithm>

#include "roundpipe/error.h"

namespace rp {

BoundCost::BoundCost(BoundSchedule schedule, const Workload& workload, int num_stages)
    : workload_(workload), splits_backward_(schedule == BoundSchedule::kZbH1) {
  const BoundOrders orders(schedule, workload.num_gpus, num_stages, workload.num_microbatches);
  const auto num_tasks = static_cast<std::size_t>(orders.num_tasks());
  for (int kind = 0; kind < (splits_backward_ ? 3 : 2); ++kind) {
    for (int stage = 0; stage < num_stages; ++stage) gpus_.push_back(orders.gpu_of(stage));
  }
  works_.resize(gpus_.size());
  ends_.resize(num_tasks);
  free_.resize(workload.num_gpus);
  tasks_.reserve(num_tasks);

  std::vector<bool> is_done(num_tasks);
  const auto is_there = [&is_done](int input) { return input < 0 || is_done[input]; };
  const std::vector<std::vector<int>>& by_gpu = orders.by_gpu();
  std::vector<std::size_t> next(by_gpu.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t gpu = 0; gpu < by_gpu.size(); ++gpu) {
      for (; next[gpu] < by_gpu[gpu].size(); ++next[gpu], moved = true) {
        const Task task = task_of(orders, by_gpu[gpu][next[gpu]]);
        if (!is_there(task.input) || !is_there(task.other_input)) break;
        is_done[task.number] = true;
        tasks_.push_back(task);
      }
    }
  }
  if (tasks_.size() < num_tasks) throw Error(ExitCode::kUsage, "the schedule waits for itself");
}

BoundCost::Task BoundCost::task_of(const BoundOrders& orders, int number) const {
  const int num_stages = orders.num_stages(), num_microbatches = orders.num_microbatches();
  const int kind_and_stage = number / num_microbatches, m = number % num_microbatches;
  const int kind = kind_and_stage / num_stages, stage = kind_and_stage % num_stages;
  Task task{.number = number, .kind_and_stage = kind_and_stage};
  if (kind == 0 && stage > 0) task.input = orders.forward(stage - 1, m);
  if (kind == 1) {
    task.input = stage + 1 == num_stages ? orders.forward(stage, m) : orders.backward(stage + 1, m);
    task.other_input = orders.forward(num_stages - 1, m);
  }
  if (kind == 2) task.input = orders.backward(stage, m);
  const auto hops = [&](int input) {
    return input >= 0 && orders.gpu_of(input / num_microbatches % num_stages) != orders.gpu_of(stage);
  };
  task.input_hops = hops(task.input);
  task.other_hops = hops(task.other_input);
  return task;
}

double BoundCost::makespan(const std::vector<int>& stages) {
  const std::vector<BoundWork> works = bound_works(workload_, stages, splits_backward_);
  for (std::size_t stage = 0; stage < works.size(); ++stage) {
    works_[stage] = works[stage].forward;
    works_[works.size() + stage] = works[stage].backward;
    if (splits_backward_) works_[2 * works.size() + stage] = works[stage].weight;
  }
  std::fill(free_.begin(), free_.end(), 0.0);
  const auto arrival = [this](int input, bool hops) {
    const double end = ends_[input];
    return hops ? end + workload_.hop : end;
  };
  for (const Task& task : tasks_) {
    const auto kind_and_stage = static_cast<std::size_t>(task.kind_and_stage);
    double& free = free_[gpus_[kind_and_stage]];
    double start = free;
    if (task.input >= 0) start = std::max(start, arrival(task.input, task.input_hops));
    if (task.other_input >= 0) start = std::max(start, arrival(task.other_input, task.other_hops));
    ends_[task.number] = free = start + works_[kind_and_stage];
  }
  return *std::max_element(free_.begin(), free_.end());
}

}  // namespace rp
