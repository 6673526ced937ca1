// scheduler/round_schedule.h
// RoundPipe's schedule: the stages of a plan as slots, slot i on GPU i mod num_gpus, each for all microbatches of a
// round.
//
// Plans here count the head as a layer behind the others; the fused stage has it. A backward stage's recompute runs
// just before its backward and does not wait for the gradient; layer by layer that is the last one's, since the others'
// comes when the backward of those behind is done. Where the fused stage's forward does not wait either is for
// Workload::fused_waits.
#pragma once

#include <algorithm>
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

  [[nodiscard]] StageWork stage(TaskKind kind, const LayerRange& layers) const {
    const auto first = static_cast<std::size_t>(layers.first), end = static_cast<std::size_t>(layers.end);
    const double once = forward_[end] - forward_[first], both = backward_[end] - backward_[first];
    if (kind == TaskKind::kForward) return {.kind = kind, .layers = layers, .time = {.work = once}};
    double lead = once;
    if (kind == TaskKind::kFused && fused_waits_) lead = 0;
    if (kind == TaskKind::kBackward && recompute_ == RecomputeGrain::kLayer) lead = forward_[end] - forward_[end - 1];
    return {.kind = kind, .layers = layers, .time = {.lead = lead, .work = both - lead}};
  }
  // Of a backward stage: those that have a backward. None if there are none.
  [[nodiscard]] LayerRange backward_part(const LayerRange& layers) const {
    return {std::max(layers.first, std::min(first_trained_layer_, layers.end)), layers.end};
  }
  // Element i: of layers [0, i), in ms; backward with recompute.
  [[nodiscard]] const std::vector<double>& forward() const { return forward_; }
  [[nodiscard]] const std::vector<double>& backward() const { return backward_; }

 private:
  bool fused_waits_;
  RecomputeGrain recompute_;
  int first_trained_layer_;
  std::vector<double> forward_, backward_;
};

// In the order of the slots of a round; backward stages without the layers that have no backward, and none of these
// alone. REQUIRES: a plan with a fused stage, for num_layers() + 1 layers.
[[nodiscard]] std::vector<StageWork> stage_works(const Workload& workload, const Plan& plan);

// What a step takes on one GPU of slowness 1, in ms.
[[nodiscard]] double busy_ms(const Workload& workload, const std::vector<StageWork>& stages);

// How long each GPU computes in a step if all end at once, by how fast they are, in ms.
[[nodiscard]] double busy_ms_per_gpu(const Workload& workload, const std::vector<StageWork>& stages);

// No step of these stages is shorter: busy_ms_per_gpu(), and what one microbatch goes through. In ms. `asynchronous`: a
// layer waits for its update by the step before the last, so two steps take at least as long as a microbatch from the
// first stage on that is trained.
[[nodiscard]] double lower_bound_ms(const Workload& workload, const std::vector<StageWork>& stages,
                                    bool asynchronous = false);

// One step as a graph, for its timeline.
[[nodiscard]] TaskGraph round_schedule(const Workload& workload, const std::vector<StageWork>& stages);

// Asynchronous steps that follow each other without a flush, as in RoundSimulator::period().
[[nodiscard]] TaskGraph chained_schedule(const Workload& workload, const std::vector<StageWork>& stages, int num_steps);

// The same without a graph, for searches: a slot as a whole waits for the one before it and for its GPU. Times in ms.
class RoundSimulator {
 public:
  explicit RoundSimulator(const Workload& workload);

  // From idle GPUs to the end of a step's last task.
  [[nodiscard]] double makespan(const std::vector<StageWork>& stages);

  // The time from step to step of chained asynchronous steps: each GPU takes its next task without a flush, and a layer
  // of step k waits until all of step k - 2 that uses the layer is done. Mean over the steps after 40, by the end of
  // the GPU that ends last: 160 of them, or as many more as it takes until each stage has been on the same GPU again.
  [[nodiscard]] double period(const std::vector<StageWork>& stages);
  // The same over the steps after `from`, to the end of `to`.
  [[nodiscard]] double period(const std::vector<StageWork>& stages, int from, int to);

 private:
  template <typename Ready, typename Done>
  void step(const std::vector<StageWork>& stages, const Ready& ready, const Done& done);

  SlotClock clock_;
  int num_gpus_;
  int num_rounds_;
  int first_trained_layer_;
  // When a layer's update is there, of the step before the last, the last, and the present one.
  std::vector<double> before_, last_, present_;
};

}  // namespace rp
