#include "coordinator/schedule_report.h"

#include <algorithm>

#include "common/check.h"

namespace rp {

namespace {

double part(double of, double all) { return all > 0 ? of / all : 0; }

}  // namespace

double MeasuredSteps::efficiency() const {
  return part(static_cast<double>(busy_ns), static_cast<double>(wall_ns) * num_workers);
}
double MeasuredSteps::step_ms() const { return part(static_cast<double>(wall_ns) * 1e-6, num_steps); }
double MeasuredSteps::dispatch_us_per_task() const {
  return part(static_cast<double>(dispatch_ns) * 1e-3, static_cast<double>(num_tasks));
}
double MeasuredSteps::dispatch_part() const { return part(static_cast<double>(dispatch_ns), static_cast<double>(busy_ns)); }
double MeasuredSteps::exposed_part() const {
  return part(static_cast<double>(exposed_ns), static_cast<double>(wall_ns) * num_workers);
}

void ScheduleReport::add(const CommittedTask& task) {
  if (!task.round.traits.has_backward()) return;
  const ComputeTimes& compute = task.completion.compute;
  MutexLock lock(mutex_);
  Step& step = steps_[task.round.step];
  ++step.num_tasks;
  step.end_ns = std::max(step.end_ns, task.completion.end_ns);
  step.plan = task.round.plan;
  step.recompute = task.round.traits.grain_layer ? RecomputeGrain::kLayer : RecomputeGrain::kStage;
  step.num_fused += task.slot.phase == Phase::kFused ? 1 : 0;
  step.round_microbatches = task.round.traits.num_microbatches;
  step.compute.busy_ns += compute.busy_ns;
  step.compute.exposed_ns += compute.exposed_ns;
  step.compute.dispatch_ns += compute.dispatch_ns;
  step.max_dispatch_ns = std::max(step.max_dispatch_ns, compute.dispatch_ns);
}

MeasuredSteps ScheduleReport::measure(std::uint64_t warm_up) const {
  MutexLock lock(mutex_);
  RP_ASSERT(warm_up >= 1 && steps_.size() > warm_up && steps_.begin()->first == 1 && steps_.rbegin()->first == steps_.size());
  MeasuredSteps measured{.num_workers = num_workers_};
  for (auto step = steps_.upper_bound(warm_up); step != steps_.end(); ++step) {
    ++measured.num_steps;
    measured.num_tasks += step->second.num_tasks;
    measured.busy_ns += step->second.compute.busy_ns;
    measured.exposed_ns += step->second.compute.exposed_ns;
    measured.dispatch_ns += step->second.compute.dispatch_ns;
    measured.max_dispatch_ns = std::max(measured.max_dispatch_ns, step->second.max_dispatch_ns);
  }
  measured.wall_ns = steps_.rbegin()->second.end_ns - steps_.at(warm_up).end_ns;
  return measured;
}

ScheduleReport::Shape ScheduleReport::shape() const {
  MutexLock lock(mutex_);
  RP_ASSERT(!steps_.empty());
  const Step& last = steps_.rbegin()->second;
  Shape shape{.plan = last.plan, .num_rounds = last.num_fused, .round_microbatches = last.round_microbatches,
              .recompute = last.recompute};
  const auto is_alike = [&last](const Step& step) { return step.plan == last.plan && step.recompute == last.recompute; };
  for (auto step = steps_.rbegin(); step != steps_.rend() && is_alike(step->second); ++step) shape.first_step = step->first;
  return shape;
}

std::uint64_t ScheduleReport::num_steps() const {
  MutexLock lock(mutex_);
  return steps_.size();
}

}  // namespace rp
