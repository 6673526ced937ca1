// scheduler/bound/bound_orders.h
// Lists the tasks of a schedule that binds stages to GPUs, and the order in which each GPU runs
// them. Neither depends on how the model is cut, only on the number of stages.
#pragma once

#include <vector>

#include "scheduler/bound/bound_schedules.h"

namespace rp {

// Numbers the tasks of all stages and microbatches: first forwards, then backwards (only the input
// gradients, if weight gradients are separate tasks), then weight gradients; within each kind by
// stage, then by microbatch.
class BoundOrders {
 public:
  // REQUIRES: num_stages is a multiple of num_gpus; for kInterleaved, so is num_microbatches.
  BoundOrders(BoundSchedule schedule, int num_gpus, int num_stages, int num_microbatches);

  [[nodiscard]] int num_stages() const { return num_stages_; }
  [[nodiscard]] int num_microbatches() const { return num_microbatches_; }
  [[nodiscard]] int num_tasks() const { return (splits_backward_ ? 3 : 2) * num_stages_ * num_microbatches_; }
  [[nodiscard]] bool splits_backward() const { return splits_backward_; }

  [[nodiscard]] int gpu_of(int stage) const { return stage % num_gpus_; }
  [[nodiscard]] int forward(int stage, int microbatch) const { return stage * num_microbatches_ + microbatch; }
  [[nodiscard]] int backward(int stage, int microbatch) const { return forward(num_stages_ + stage, microbatch); }
  [[nodiscard]] int weight_gradient(int stage, int microbatch) const {
    return forward(2 * num_stages_ + stage, microbatch);
  }

  // The numbers of each GPU's tasks in the order in which it runs them.
  [[nodiscard]] const std::vector<std::vector<int>>& by_gpu() const { return orders_; }

 private:
  [[nodiscard]] std::vector<int>& order(int gpu) { return orders_[gpu]; }
  void order_breadth_first(bool reverse);
  void order_1f1b();
  void order_interleaved();

  int num_gpus_;
  int num_stages_;
  int num_microbatches_;
  bool splits_backward_;
  std::vector<std::vector<int>> orders_;
};

// The times of the tasks of a stage, in ms.
struct BoundWork {
  double forward = 0;
  double backward = 0;   // with recompute; without the weight gradient if that is a separate task
  double weight = 0;     // the weight gradient if that is a separate task
  double recompute = 0;  // the part at the beginning of `backward`
};

// Returns the times by stage; the last stage has the head. REQUIRES: the stages have all of the
// workload's layers.
[[nodiscard]] std::vector<BoundWork> bound_works(const Workload& workload, const std::vector<int>& stages,
                                                 bool splits_backward);

}  // namespace rp
