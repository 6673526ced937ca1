// coordinator/schedule_report.h
// How well the steps of a run used its workers: what was said of each task, by step; and what the steps were, so that a
// simulator can be asked about the same ones.
//
// add() is for CoordinatorOptions::on_commit; the rest is for any thread. Of one pipeline's rounds with gradients, and
// of the newest steps only, so that a run may last for ever.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/mutex.h"
#include "coordinator/coordinator.h"
#include "scheduler/workload.h"

namespace rp {

struct MeasuredSteps {
  int num_workers = 0;
  int num_steps = 0;
  std::int64_t num_tasks = 0;
  std::int64_t wall_ns = 0;  // from the end of the step before the first to the end of the last one
  double median_ms = 0;      // of the times between the ends of two steps
  std::int64_t busy_ns = 0;  // of all workers, as the rest
  std::int64_t exposed_ns = 0;
  std::int64_t dispatch_ns = 0;
  std::int64_t max_dispatch_ns = 0;  // of one task

  // Busy time as a part of all workers' time.
  [[nodiscard]] double efficiency() const;
  [[nodiscard]] double bubble() const { return 1 - efficiency(); }
  [[nodiscard]] double step_ms() const;
  [[nodiscard]] double dispatch_us_per_task() const;
  // As a part of the tasks' compute.
  [[nodiscard]] double dispatch_part() const;
  // Standing still while only the worker's own copies were missing, as a part of all workers' time.
  [[nodiscard]] double exposed_part() const;
};

class ScheduleReport {
 public:
  explicit ScheduleReport(int num_workers) : num_workers_(num_workers) {}

  void add(const CommittedTask& task);

  // Steps without the first `warm_up` up to the last one, which are all committed; a step ends when the last of its
  // tasks has computed. REQUIRES: warm_up >= 1; there is a later step.
  [[nodiscard]] MeasuredSteps measure(std::uint64_t warm_up) const;

  // What the last step was like. REQUIRES: there was one.
  struct Shape {
    Plan plan;
    int num_rounds = 0;
    int round_microbatches = 0;
    RecomputeGrain recompute = RecomputeGrain::kStage;
    std::uint64_t first_step = 0;  // the how manieth it was, from 1, from which on all steps were like this
  };
  [[nodiscard]] Shape shape() const;
  // Steps of which tasks were added.
  [[nodiscard]] std::uint64_t num_steps() const;

  static constexpr std::size_t kMaxSteps = 1000;  // the newest

 private:
  struct Step {
    std::int64_t num_tasks = 0;
    std::int64_t end_ns = 0;
    ComputeTimes compute;
    std::int64_t max_dispatch_ns = 0;
    std::shared_ptr<const Plan> plan;  // steps in a row that have the same share it
    RecomputeGrain recompute = RecomputeGrain::kStage;
    int num_fused = 0;
    int round_microbatches = 0;
  };

  [[nodiscard]] Step& step_of(const CommittedTask& task) RP_REQUIRES(mutex_);

  const int num_workers_;
  mutable Mutex mutex_;
  std::map<std::uint64_t, Step> steps_ RP_GUARDED_BY(mutex_);  // by number
  std::uint64_t num_dropped_ RP_GUARDED_BY(mutex_) = 0;
};

}  // namespace rp
