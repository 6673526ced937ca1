// scheduler/round_schedule.h
// Builds and simulates RoundPipe's schedule: the stages of a plan as slots, slot i on GPU i mod
// num_gpus, each for all microbatches of a round.
//
// In these plans the head counts as a layer after the others, and the fused stage has it. The
// recompute of a backward stage runs just before its backward and does not wait for the gradient.
// With recompute by layer this holds for the last layer's recompute only, since each of the others
// runs when the backward of the layers after it has finished. Workload::fused_waits determines
// whether the fused stage's forward waits for its input.
#pragma once

#include <vector>

#include "scheduler/network_clock.h"
#include "scheduler/plan.h"
#include "scheduler/simulator.h"
#include "scheduler/slot_clock.h"
#include "scheduler/workload.h"

namespace rp {

// One stage; all its tasks are alike.
struct StageWork {
  TaskKind kind = TaskKind::kForward;
  LayerRange layers;
  SlotTime time;  // ms
};

// Computes the work of a stage from its range of layers.
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
  // Returns trained_part() of a backward stage of this workload.
  [[nodiscard]] LayerRange backward_part(const LayerRange& layers) const {
    return trained_part(layers, first_trained_layer_);
  }
  // Element i: the sum over layers [0, i), in ms; backward() includes the recompute.
  [[nodiscard]] const std::vector<double>& forward() const { return forward_; }
  [[nodiscard]] const std::vector<double>& backward() const { return backward_; }

 private:
  bool fused_waits_;
  RecomputeGrain recompute_;
  int first_trained_layer_;
  std::vector<double> forward_, backward_;
};

// Returns the stages in the order of a round's slots. Backward stages are without the layers that
// have no backward; a stage of such layers alone is left out. REQUIRES: a plan with a fused stage,
// for num_layers() + 1 layers.
[[nodiscard]] std::vector<StageWork> stage_works(const Workload& workload, const Plan& plan);

// Returns the time that a step computes on one GPU of slowness 1, in ms.
[[nodiscard]] double busy_ms(const Workload& workload, const std::vector<StageWork>& stages);

// Returns how long each GPU computes in a step if the work is divided by their speed, so that all
// end together, in ms.
[[nodiscard]] double busy_ms_per_gpu(const Workload& workload, const std::vector<StageWork>& stages);

// Returns a lower bound of a step of these stages, in ms: the maximum of busy_ms_per_gpu() and the
// time of one microbatch through all stages. `asynchronous`: a layer waits for its update by the
// step before the last, so two steps take at least as long as one microbatch from the first trained
// stage to the end.
[[nodiscard]] double lower_bound_ms(const Workload& workload, const std::vector<StageWork>& stages,
                                    bool asynchronous = false);

// Returns one step as a graph, or asynchronous steps that follow each other without a flush, as in
// RoundSimulator::period().
[[nodiscard]] TaskGraph chained_schedule(const Workload& workload, const std::vector<StageWork>& stages, int num_steps);

// Simulates the schedule without a graph, for searches. A slot waits for the slot before it and for
// its GPU. Times are in ms.
class RoundSimulator {
 public:
  explicit RoundSimulator(const Workload& workload);

  // Returns the time from idle GPUs to the end of a step's last task.
  [[nodiscard]] double makespan(const std::vector<StageWork>& stages);

  // Returns the time from step to step of chained asynchronous steps. Each GPU starts its next task
  // without a flush, and a layer in step k waits until all slots of step k - 2 that use the layer
  // have ended. The result is the mean over the steps after step 40, by the end of the GPU that
  // ends last: over 160 steps, or more until each stage has been on the same GPU again.
  [[nodiscard]] double period(const std::vector<StageWork>& stages);
  // Returns the mean over the steps after `from` until the end of `to`.
  [[nodiscard]] double period(const std::vector<StageWork>& stages, int from, int to);
  // Returns the same for the first node of several, where a layer waits until its weights have
  // arrived: those of step k - 1, or k - 2 if steps are asynchronous. REQUIRES: `network` has the
  // workload's layers.
  [[nodiscard]] double period(const std::vector<StageWork>& stages, NetworkClock& network, int from, int to);

 private:
  template <typename Ready, typename Done>
  void step(const std::vector<StageWork>& stages, const Ready& ready, const Done& done);

  SlotClock clock_;
  int num_gpus_;
  int num_rounds_;
  int first_trained_layer_;
  // Returns the time at which all of these layers may be computed with.
  [[nodiscard]] double ready(const LayerRange& layers) const;

  // By layer: the time at which its update is available, in the step before the previous one, in
  // the previous step, and in the current one.
  std::vector<double> before_, last_, present_;
};

}  // namespace rp
