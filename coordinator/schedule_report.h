// coordinator/schedule_report.h
// Measures how well the steps of a run used its workers, and describes the steps so that a
// simulator can run the same ones.
//
// add() is for CoordinatorOptions::on_commit; all other methods are for any thread. Covers the
// rounds with gradients of one pipeline, and only the newest steps, so that memory stays bounded
// however long a run lasts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "common/mutex.h"
#include "coordinator/coordinator.h"
#include "scheduler/workload.h"

namespace rp {

struct MeasuredSteps {
  int num_workers = 0;
  int num_steps = 0;
  std::int64_t num_tasks = 0;
  std::int64_t wall_ns = 0;  // from the end of the step before the first measured one to the end of the last one
  double median_ms = 0;      // of the times between the ends of consecutive steps
  std::int64_t busy_ns = 0;  // sums over all workers, as are the fields below
  std::int64_t exposed_ns = 0;
  std::int64_t dispatch_ns = 0;
  std::int64_t max_dispatch_ns = 0;  // of one task

  // Busy time as a fraction of all workers' time.
  [[nodiscard]] double efficiency() const;
  [[nodiscard]] double bubble() const { return 1 - efficiency(); }
  [[nodiscard]] double step_ms() const;
  [[nodiscard]] double dispatch_us_per_task() const;
  // Dispatch time as a fraction of the tasks' busy time.
  [[nodiscard]] double dispatch_part() const;
  // Time that workers stood still while only their own copies were missing, as a fraction of all
  // workers' time.
  [[nodiscard]] double exposed_part() const;
};

class ScheduleReport {
 public:
  explicit ScheduleReport(int num_workers) : num_workers_(num_workers) {}

  void add(const CommittedTask& task);

  // Measures the steps after the first `warm_up` ones, up to the last one. A step ends when the
  // last of its tasks has computed. REQUIRES: warm_up >= 1; there is a later step; all tasks of
  // these steps are committed.
  [[nodiscard]] MeasuredSteps measure(std::uint64_t warm_up) const;

  // Describes the last step. REQUIRES: there was a step.
  struct Shape {
    Plan plan;
    int num_rounds = 0;
    int round_microbatches = 0;
    RecomputeGrain recompute = RecomputeGrain::kStage;
    std::uint64_t first_step = 0;  // from 1: the first in the series of equal steps that ends with this one
  };
  [[nodiscard]] Shape shape() const;
  // Returns the number of steps whose tasks were added.
  [[nodiscard]] std::uint64_t num_steps() const;

  static constexpr std::size_t kMaxSteps = 1000;  // of the newest steps

 private:
  struct Step {
    std::int64_t num_tasks = 0;
    std::int64_t end_ns = 0;
    ComputeTimes compute;
    std::int64_t max_dispatch_ns = 0;
    std::shared_ptr<const Plan> plan;  // shared by consecutive steps that have the same plan
    RecomputeGrain recompute = RecomputeGrain::kStage;
    int num_fused = 0;
    int round_microbatches = 0;
  };

  [[nodiscard]] Step& step_of(const CommittedTask& task) RP_REQUIRES(mutex_);

  const int num_workers_;
  mutable Mutex mutex_;
  std::map<std::uint64_t, Step> steps_ RP_GUARDED_BY(mutex_);  // by step number
  std::uint64_t num_dropped_ RP_GUARDED_BY(mutex_) = 0;
};

}  // namespace rp
