// scheduler/bound/bound_cost.h
// What a step takes by a schedule whose stages are bound to GPUs, for many ways to cut the model into the same number
// of stages.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/bound/bound_orders.h"

namespace rp {

// Simulates a step again and again. In which order its tasks can be looked at, and what each waits for, is found once;
// after that a task costs a few ns and 32 bytes. Gives the bits of simulate(bound_schedule()).
class BoundCost {
 public:
  // `workload` must outlive it. Throws rp::Error (kUsage) if the schedule waits for itself. REQUIRES: as BoundOrders.
  BoundCost(BoundSchedule schedule, const Workload& workload, int num_stages);

  // REQUIRES: num_stages stages, which check_bound_stages() admits.
  [[nodiscard]] double makespan(const std::vector<int>& stages);

  // Of each call.
  [[nodiscard]] std::uint64_t num_tasks() const { return tasks_.size(); }
  [[nodiscard]] bool splits_backward() const { return splits_backward_; }

 private:
  struct Task {
    int number = 0;
    int input = -1, other_input = -1;
    int kind_and_stage = 0;                       // index into works_ and gpus_
    bool input_hops = false, other_hops = false;  // they come from another GPU
  };

  [[nodiscard]] Task task_of(const BoundOrders& orders, int number) const;

  const Workload& workload_;
  const bool splits_backward_;
  std::vector<Task> tasks_;    // each behind those that it waits for
  std::vector<int> gpus_;      // by kind and stage
  std::vector<double> works_;  // likewise, of the present call
  std::vector<double> ends_;   // by number
  std::vector<double> free_;   // by GPU
};

}  // namespace rp
