#include "scheduler/simulator.h"

#include <algorithm>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr double kNotYet = -1;

class Simulation {
 public:
  explicit Simulation(const TaskGraph& graph) : graph_(graph), next_(graph.order.size()), free_(graph.order.size()) {
    timeline_.start.assign(graph.tasks.size(), kNotYet);
    timeline_.end.assign(graph.tasks.size(), kNotYet);
  }

  Timeline run() {
    // Any GPU may wait for a task that has just ended, so all GPUs are visited in turn until no GPU
    // moves any more.
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t gpu = 0; gpu < graph_.order.size(); ++gpu) {
        while (next_[gpu] < graph_.order[gpu].size() && try_task(gpu, graph_.order[gpu][next_[gpu]])) {
          ++next_[gpu];
          moved = true;
        }
      }
    }
    for (std::size_t gpu = 0; gpu < graph_.order.size(); ++gpu) {
      if (next_[gpu] == graph_.order[gpu].size()) continue;
      const SimulatedTask& task = graph_.tasks[graph_.order[gpu][next_[gpu]]];
      throw Error(ExitCode::kUsage, cat("the schedule waits for itself: GPU ", gpu, " does not get the input of stage ",
                                        task.stage, ", microbatch ", task.microbatch));
    }
    timeline_.makespan = *std::max_element(free_.begin(), free_.end());
    return std::move(timeline_);
  }

 private:
  // Returns when an input arrives; kNotYet if its task has not ended.
  [[nodiscard]] double arrival(int input, int gpu) const {
    const auto index = static_cast<std::size_t>(input);
    const double end = timeline_.end[index];
    return end == kNotYet || graph_.tasks[index].gpu == gpu ? end : end + graph_.hop;
  }

  bool try_task(std::size_t gpu, int number) {
    const auto index = static_cast<std::size_t>(number);
    const SimulatedTask& task = graph_.tasks[index];
    double begin = free_[gpu];
    for (const int other : task.after) {
      const double end = timeline_.end[other];
      if (end == kNotYet) return false;
      begin = std::max(begin, end);
    }
    double start = begin + task.lead;
    for (const int input : {task.input, task.other_input}) {
      if (input < 0) continue;
      const double there = arrival(input, task.gpu);
      if (there == kNotYet) return false;
      start = std::max(start, there);
    }
    timeline_.start[index] = start - task.lead;
    timeline_.end[index] = free_[gpu] = start + task.work;
    timeline_.busy += task.lead + task.work;
    return true;
  }

  const TaskGraph& graph_;
  Timeline timeline_;
  std::vector<std::size_t> next_;  // by GPU: index into its order
  std::vector<double> free_;       // by GPU
};

}  // namespace

int TaskGraph::add(const SimulatedTask& task) {
  tasks.push_back(task);
  return static_cast<int>(tasks.size()) - 1;
}

int TaskGraph::append(const SimulatedTask& task) {
  const int number = add(task);
  order[task.gpu].push_back(number);
  return number;
}

Timeline simulate(const TaskGraph& graph) { return Simulation(graph).run(); }

}  // namespace rp
