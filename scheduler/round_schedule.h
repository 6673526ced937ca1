// scheduler/round_schedule.h
// RoundPipe's schedule: the stages of a plan as slots, slot i on GPU i mod num_gpus, each for all microbatches of a round.
//
// Plans here count the head as a layer behind the others; the fused stage has it. A backward stage's recompute runs just
// before its backward and does not wait for the gradient; where the fused stage's forward does not wait either is for
// Workload::fused_waits.
#pragma once

#include <vector>

#include "scheduler/plan.h"
#include "scheduler/simulator.h"
#include "scheduler/slot_clock.h"
#include "scheduler/workload.h"

namespace rp {

// The tasks of one stage, all alike.
struct StageWork {
  TaskKind kind = TaskKind::kForward;
  LayerRange layers;
  SlotTime time;  // ms
};

// Makes stages of layers.
class StageSums {
 public:
  explicit StageSums(const Workload& workload);

  [[nodiscard]] StageWork stage(TaskKind kind, const LayerRange& layers) const;
  // Element i: of layers [0, i), in ms; backward with recompute.
  [[nodiscard]] const std::vector<double>& forward() const { return forward_; }
  [[nodiscard]] const std::vector<double>& backward() const { return backward_; }

 private:
  bool fused_waits_;
  std::vector<double> forward_, backward_;
};

// In the order of the slots of a round. REQUIRES: a plan with a fused stage, for num_layers() + 1 layers.
[[nodiscard]] std::vector<StageWork> stage_works(const Workload& workload, const Plan& plan);

// What the GPUs compute in a step, all together, in ms.
[[nodiscard]] double busy_ms(const Workload& workload, const std::vector<StageWork>& stages);

// No schedule of these stages is shorter: the GPUs' work shared evenly, and what one microbatch goes through. In ms.
[[nodiscard]] double lower_bound_ms(const Workload& workload, const std::vector<StageWork>& stages);

// One step as a graph, for its timeline.
[[nodiscard]] TaskGraph round_schedule(const Workload& workload, const std::vector<StageWork>& stages);

// The same without a graph, for searches: a slot as a whole waits for the one before it and for its GPU. Times in ms.
class RoundSimulator {
 public:
  explicit RoundSimulator(const Workload& workload);

  // From idle GPUs to the end of a step's last task.
  [[nodiscard]] double makespan(const std::vector<StageWork>& stages);

  // The time from step to step of chained asynchronous steps: each GPU takes its next task without a flush, and a layer of
  // step k waits until all of step k - 2 that uses the layer is done. Mean over steps `from` to `to`, by the end of the GPU
  // that ends last.
  [[nodiscard]] double period(const std::vector<StageWork>& stages, int from = 40, int to = 200);

 private:
  template <typename Ready, typename Done>
  void step(const std::vector<StageWork>& stages, const Ready& ready, const Done& done);

  SlotClock clock_;
  int num_rounds_;
  // When a layer's update is there, of the step before the last, the last, and the present one.
  std::vector<double> before_, last_, present_;
};

}  // namespace rp
