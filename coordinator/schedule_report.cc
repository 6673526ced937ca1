#include "coordinator/schedule_report.h"

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "common/median.h"

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
double MeasuredSteps::dispatch_part() const {
  return part(static_cast<double>(dispatch_ns), static_cast<double>(busy_ns));
}
double MeasuredSteps::exposed_part() const {
  return part(static_cast<double>(exposed_ns), static_cast<double>(wall_ns) * num_workers);
}

ScheduleReport::Step& ScheduleReport::step_of(const CommittedTask& task) {
  const auto found = steps_.find(task.round.step);
  if (found != steps_.end()) return found->second;
  std::shared_ptr<const Plan> plan = steps_.empty() ? nullptr : steps_.rbegin()->second.plan;
  if (!plan || *plan != task.round.plan) plan = std::make_shared<const Plan>(task.round.plan);
  if (steps_.size() == kMaxSteps) {
    steps_.erase(steps_.begin());
    ++num_dropped_;
  }
  Step& step = steps_[task.round.step];
  step.plan = std::move(plan);
  return step;
}

void ScheduleReport::add(const CommittedTask& task) {
  if (!task.round.traits.has_backward()) return;
  const Completion& completion = task.completion;
  ComputeTimes compute = completion.compute;
  if (compute.busy_ns == 0)
    compute.busy_ns = completion.end_ns - completion.start_ns - completion.wait_ns;  // no emulated device
  MutexLock lock(mutex_);
  Step& step = step_of(task);
  ++step.num_tasks;
  step.end_ns = std::max(step.end_ns, completion.end_ns);
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
  RP_ASSERT(warm_up >= 1 && num_dropped_ + steps_.size() > warm_up);
  // The step before the measured ones is needed for its end.
  const auto before =
      std::next(steps_.begin(), static_cast<std::ptrdiff_t>(std::max(warm_up, num_dropped_ + 1) - num_dropped_ - 1));
  MeasuredSteps measured{.num_workers = num_workers_};
  std::vector<double> times_ms;
  std::int64_t last_end_ns = before->second.end_ns;
  for (auto step = std::next(before); step != steps_.end(); ++step) {
    ++measured.num_steps;
    measured.num_tasks += step->second.num_tasks;
    measured.busy_ns += step->second.compute.busy_ns;
    measured.exposed_ns += step->second.compute.exposed_ns;
    measured.dispatch_ns += step->second.compute.dispatch_ns;
    measured.max_dispatch_ns = std::max(measured.max_dispatch_ns, step->second.max_dispatch_ns);
    times_ms.push_back(static_cast<double>(step->second.end_ns - last_end_ns) * 1e-6);
    last_end_ns = step->second.end_ns;
  }
  measured.wall_ns = last_end_ns - before->second.end_ns;
  measured.median_ms = median(std::move(times_ms));
  return measured;
}

ScheduleReport::Shape ScheduleReport::shape() const {
  MutexLock lock(mutex_);
  RP_ASSERT(!steps_.empty());
  const Step& last = steps_.rbegin()->second;
  Shape shape{.plan = *last.plan,
              .num_rounds = last.num_fused,
              .round_microbatches = last.round_microbatches,
              .recompute = last.recompute,
              .first_step = num_dropped_ + steps_.size() + 1};
  const auto is_alike = [&last](const Step& step) {
    return *step.plan == *last.plan && step.recompute == last.recompute && step.num_fused == last.num_fused &&
           step.round_microbatches == last.round_microbatches;
  };
  for (auto step = steps_.rbegin(); step != steps_.rend() && is_alike(step->second); ++step) --shape.first_step;
  return shape;
}

std::uint64_t ScheduleReport::num_steps() const {
  MutexLock lock(mutex_);
  return num_dropped_ + steps_.size();
}

}  // namespace rp
