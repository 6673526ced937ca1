#include "scheduler/plan_cost.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/check.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// The fixed cost of simulating a slot, in tasks.
constexpr int kTasksOfASlot = 8;
// The cost of a layer's messages in a round, in tasks.
constexpr int kTasksOfMessages = 8;

[[noreturn]] void refuse(const std::string& what) { throw Error(ExitCode::kUsage, what); }

void check_limits(const std::vector<int>& ends, int num_layers) {
  if (ends.empty()) return;
  if (ends.size() != static_cast<std::size_t>(num_layers)) {
    refuse(cat("there are limits for stages that begin with ", ends.size(), " layers, for ", num_layers,
               " with the head"));
  }
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] <= static_cast<int>(i)) refuse(cat("the limit for stages that begin with layer ", i, " admits none"));
  }
}

bool keep(const std::vector<int>& ends, const std::vector<int>& limits) {
  if (limits.empty()) return true;
  int first = 0;
  return std::all_of(ends.begin(), ends.end(), [&](int end) { return end <= limits[std::exchange(first, end)]; });
}

int longest_end(const std::vector<int>& limits, int first, int fused_start) {
  return limits.empty() ? fused_start : std::min(limits[first], fused_start);
}

}  // namespace

Plan plan_of(const Cuts& cuts) {
  Plan plan;
  int first = 0;
  for (const int end : cuts.forward) plan.forward.push_back({std::exchange(first, end), end});
  plan.fused_start = first;
  first = 0;
  for (const int end : cuts.backward) plan.backward.push_back({std::exchange(first, end), end});
  std::reverse(plan.backward.begin(), plan.backward.end());
  return plan;
}

int kept_inputs(const Cuts& cuts) {
  std::vector<int> ends;
  std::set_union(cuts.forward.begin(), cuts.forward.end(), cuts.backward.begin(), cuts.backward.end(),
                 std::back_inserter(ends));
  return static_cast<int>(ends.size());
}

int kept_inputs(const Plan& plan) {
  Cuts cuts;
  for (const LayerRange& stage : plan.forward) cuts.forward.push_back(stage.end);
  for (const LayerRange& stage : plan.backward) cuts.backward.insert(cuts.backward.begin(), stage.end);
  return kept_inputs(cuts);
}

Cuts longest_cuts(const StageLimits& limits, int num_layers) {
  const int fused_start = limits.least_fused_start;
  RP_ASSERT(fused_start < num_layers);
  Cuts cuts;
  for (int first = 0; first < fused_start; first = cuts.backward.back())
    cuts.backward.push_back(longest_end(limits.backward, first, fused_start));
  for (int first = 0; first < fused_start; first = cuts.forward.back()) {
    const int most = longest_end(limits.forward, first, fused_start);
    const auto after = std::upper_bound(cuts.backward.begin(), cuts.backward.end(), most);
    const bool is_shared = after != cuts.backward.begin() && after[-1] > first;
    cuts.forward.push_back(is_shared ? after[-1] : most);
  }
  return cuts;
}

PlanCost::PlanCost(const PlanTask& task)
    : asynchronous_(task.asynchronous),
      limits_(task.limits),
      num_layers_(task.workload.num_layers() + 1),
      sums_(task.workload) {
  if (task.workload.num_gpus < 1) refuse("a plan needs at least one GPU");
  if (task.round_choices.empty()) refuse("a plan needs a number of microbatches a round");
  for (const int round : task.round_choices) {
    if (round < 1 || task.workload.num_microbatches % round != 0) {
      refuse(cat("rounds of ", round, " microbatches do not make a step of ", task.workload.num_microbatches));
    }
    Workload& workload = workloads_.emplace_back(task.workload);
    workload.round_microbatches = round;
    simulators_.emplace_back(workload);
  }
  if (!task.network.layers.empty()) {
    if (task.network.layers.size() != static_cast<std::size_t>(num_layers_)) {
      refuse(cat("there are messages of ", task.network.layers.size(), " layers, for ", num_layers_, " with the head"));
    }
    network_.emplace(task.network, task.asynchronous);
  }
  check_limits(limits_.forward, num_layers_);
  check_limits(limits_.backward, num_layers_);
  if (limits_.least_fused_start < 0 || limits_.least_fused_start >= num_layers_) {
    refuse(cat("the fused stage cannot begin at layer ", limits_.least_fused_start, " of ", num_layers_,
               " with the head"));
  }
  if (!limits_.most_kept_inputs) return;
  if (const int least = kept_inputs(longest_cuts(limits_, num_layers_)); least > *limits_.most_kept_inputs) {
    refuse(cat("no plan keeps fewer than ", least, " inputs of layers; the limit is ", *limits_.most_kept_inputs));
  }
}

bool PlanCost::fits(const Cuts& cuts) const {
  const int fused_start = cuts.forward.empty() ? 0 : cuts.forward.back();
  return fused_start >= limits_.least_fused_start && keep(cuts.forward, limits_.forward) &&
         keep(cuts.backward, limits_.backward) &&
         (!limits_.most_kept_inputs || kept_inputs(cuts) <= *limits_.most_kept_inputs);
}

const std::vector<StageWork>& PlanCost::stages(const Cuts& cuts) {
  stages_.clear();
  int first = 0;
  for (const int end : cuts.forward)
    stages_.push_back(sums_.stage(TaskKind::kForward, {std::exchange(first, end), end}));
  stages_.push_back(sums_.stage(TaskKind::kFused, {first, num_layers_}));
  for (std::size_t i = cuts.backward.size(); i-- > 0;) {
    const LayerRange part = sums_.backward_part({i > 0 ? cuts.backward[i - 1] : 0, cuts.backward[i]});
    if (part.first < part.end) stages_.push_back(sums_.stage(TaskKind::kBackward, part));
  }
  return stages_;
}

double PlanCost::step_ms(const Cuts& cuts, Horizon horizon) {
  const auto choice = static_cast<std::size_t>(cuts.round_choice);
  const std::vector<StageWork>& list = stages(cuts);
  const Workload& workload = workloads_[choice];
  const int num_rounds = workload.num_microbatches / workload.round_microbatches;
  const auto tasks = static_cast<std::uint64_t>(num_rounds) *
                     (list.size() * static_cast<std::uint64_t>(workload.round_microbatches + kTasksOfASlot) +
                      (network_ ? static_cast<std::uint64_t>(kTasksOfMessages * num_layers_) : 0));
  RoundSimulator& simulator = simulators_[choice];
  if (!has_horizons()) {
    num_tasks_ += tasks;
    return simulator.makespan(list);
  }
  const auto period = [&](int from, int to) {
    num_tasks_ += tasks * static_cast<std::uint64_t>(to);
    return network_ ? simulator.period(list, *network_, from, to) : simulator.period(list, from, to);
  };
  switch (horizon) {
    case Horizon::kShort: return asynchronous_ ? period(1, 5) : period(2, 4);
    case Horizon::kLong: return asynchronous_ ? period(8, 24) : period(4, 8);
    case Horizon::kExact: break;
  }
  if (network_) return asynchronous_ ? period(40, 200) : period(20, 40);
  num_tasks_ += tasks * 200;
  return simulator.period(list);
}

double PlanCost::lower_bound_ms(const Cuts& cuts) {
  return rp::lower_bound_ms(workloads_[cuts.round_choice], stages(cuts), asynchronous_);
}

double PlanCost::busy_ms_per_gpu(const Cuts& cuts) {
  return rp::busy_ms_per_gpu(workloads_[cuts.round_choice], stages(cuts));
}

}  // namespace rp
