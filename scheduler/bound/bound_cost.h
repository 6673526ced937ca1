// scheduler/bound/bound_cost.h
// Computes the time of a step of a schedule that binds stages to GPUs, for many cuts of the model
// into the same number of stages.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/bound/bound_orders.h"

namespace rp {

// Simulates a step again and again. An order in which its tasks can be evaluated, and what each
// task waits for, are determined once; after that a task costs a few ns and 32 bytes. The result
// has the same bits as that of simulate(bound_schedule()).
class BoundCost {
 public:
  // `workload` must outlive this object. Throws rp::Error (kUsage) if the schedule waits for
  // itself. REQUIRES: as BoundOrders.
  BoundCost(BoundSchedule schedule, const Workload& workload, int num_stages);

  // Returns the time of a step in ms. REQUIRES: num_stages stages, which check_bound_stages()
  // accepts.
  [[nodiscard]] double makespan(const std::vector<int>& stages);

  // The number of tasks that each call of makespan() simulates.
  [[nodiscard]] std::uint64_t num_tasks() const { return tasks_.size(); }
  [[nodiscard]] bool splits_backward() const { return splits_backward_; }

 private:
  struct Task {
    int number = 0;
    int input = -1, other_input = -1;
    int kind_and_stage = 0;                       // index into works_ and gpus_
    bool input_hops = false, other_hops = false;  // true if it comes from another GPU
  };

  [[nodiscard]] Task task_of(const BoundOrders& orders, int number) const;

  const Workload& workload_;
  const bool splits_backward_;
  std::vector<Task> tasks_;    // each after the tasks that it waits for
  std::vector<int> gpus_;      // by kind and stage
  std::vector<double> works_;  // ms by kind and stage, for the current call
  std::vector<double> ends_;   // by task number
  std::vector<double> free_;   // by GPU
};

}  // namespace rp
