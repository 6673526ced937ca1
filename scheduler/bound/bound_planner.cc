#include "scheduler/bound/bound_planner.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/text.h"
#include "roundpipe/error.h"
#include "scheduler/bound/bound_cost.h"

namespace rp {

namespace {

// Cuts a model into any number of stages so that the longest stage is as short as possible. The
// last stage has the head and may have no layer in addition. Of equally good cuts, the one whose
// later stages are shorter is taken.
class EvenStages {
 public:
  explicit EvenStages(const Workload& workload)
      : num_layers_(workload.num_layers()), head_(workload.head.forward + workload.head.backward), sums_(1) {
    for (const LayerWork& layer : workload.layers) sums_.push_back(sums_.back() + 2 * layer.forward + layer.backward);
  }

  [[nodiscard]] std::vector<int> cut(int num_stages) {
    std::vector<int> counts(num_stages);
    int end = num_stages == 1 ? 0 : begin_of_last(row(num_stages - 2));
    counts.back() = num_layers_ - end;
    for (int stage = num_stages - 1; stage-- > 0;) {
      const int first = row(stage).begins[end];
      counts[stage] = end - first;
      end = first;
    }
    return counts;
  }

 private:
  // For the best cut of layers [0, end) into a given number of stages, none of them empty, by end:
  // the time of the longest stage, and the first layer of the last stage.
  struct Row {
    std::vector<double> longest;
    std::vector<int> begins;
  };

  [[nodiscard]] double time(int first, int end) const { return sums_[end] - sums_[first]; }

  // Returns the row for number + 1 stages.
  const Row& row(int number) {
    while (static_cast<int>(rows_.size()) <= number) rows_.push_back(rows_.empty() ? first_row() : next_row());
    return rows_[number];
  }

  [[nodiscard]] Row first_row() const {
    Row row{.longest = std::vector<double>(sums_.size(), INFINITY), .begins = std::vector<int>(sums_.size(), 0)};
    for (int end = 1; end <= num_layers_; ++end) row.longest[end] = time(0, end);
    return row;
  }

  // With more layers before the last stage, the longest stage before it grows and the last stage
  // shrinks. The best border is where the two meet, and it moves forward with the end.
  [[nodiscard]] Row next_row() const {
    const std::vector<double>& before = rows_.back().longest;
    const auto at = [&before](int layer) { return before[layer]; };
    Row row{.longest = std::vector<double>(sums_.size(), INFINITY), .begins = std::vector<int>(sums_.size(), -1)};
    const int least = static_cast<int>(rows_.size());
    for (int end = least + 1, meet = least; end <= num_layers_; ++end) {
      while (meet < end && at(meet) < time(meet, end)) ++meet;
      const double with_less = meet > least ? time(meet - 1, end) : INFINITY;
      const auto index = static_cast<std::size_t>(end);
      if (meet < end && at(meet) <= with_less) {
        row.longest[index] = at(meet);
        row.begins[index] =
            static_cast<int>(std::upper_bound(before.begin() + meet, before.begin() + end, at(meet)) - before.begin()) -
            1;
      } else {
        row.longest[index] = with_less;
        row.begins[index] = meet - 1;
      }
    }
    return row;
  }

  // Returns the first layer of the last stage, which has the head and follows the stages of
  // `before`.
  [[nodiscard]] int begin_of_last(const Row& before) const {
    double least = INFINITY;
    int begin = num_layers_;
    for (int first = num_layers_; first > 0; --first) {
      const double longest = std::max(before.longest[first], time(first, num_layers_) + head_);
      if (longest >= least) continue;
      least = longest;
      begin = first;
    }
    return begin;
  }

  const int num_layers_;
  const double head_;
  std::vector<double> sums_;  // element i: the sum over layers [0, i)
  std::vector<Row> rows_;     // element i: for i + 1 stages
};

struct Found {
  std::vector<int> stages;
  double makespan = 0;
};

// Returns true if the work of the busiest GPU, a lower bound that needs no simulation, already
// exceeds `best`.
bool is_hopeless(const BoundCost& cost, const Workload& workload, const std::vector<int>& stages, double best) {
  constexpr double kRounding = 1 + 1e-9;
  std::vector<double> busy(workload.num_gpus);
  const std::vector<BoundWork> works = bound_works(workload, stages, cost.splits_backward());
  for (std::size_t stage = 0; stage < works.size(); ++stage) {
    busy[stage % busy.size()] += works[stage].forward + works[stage].backward + works[stage].weight;
  }
  return *std::max_element(busy.begin(), busy.end()) * workload.num_microbatches > best * kRounding;
}

// Simulates at most `tasks_left` tasks and decreases it.
void improve(BoundCost& cost, const Workload& workload, Found& best, std::uint64_t& tasks_left) {
  const std::size_t num_stages = best.stages.size();
  for (bool improved = true; improved;) {
    improved = false;
    // A layer may also move between stages that are not neighbours: through a chain of equal
    // stages.
    for (std::size_t from = 0; from < num_stages; ++from) {
      for (std::size_t to = 0; to < num_stages; ++to) {
        if (from == to || best.stages[from] == (from + 1 == num_stages ? 0 : 1)) continue;
        std::vector<int> next = best.stages;
        --next[from];
        ++next[to];
        const bool hopeless = is_hopeless(cost, workload, next, best.makespan);
        const std::uint64_t tasks = hopeless ? num_stages : cost.num_tasks();
        if (tasks_left < tasks) return;
        tasks_left -= tasks;
        if (hopeless) continue;
        const double time = cost.makespan(next);
        if (time >= best.makespan - 1e-9) continue;
        best = {.stages = std::move(next), .makespan = time};
        improved = true;
      }
    }
  }
}

// Returns the numbers of stages to try for looped schedules: all multiples of the number of GPUs,
// or fewer of the larger ones if all would be too much work.
std::vector<int> stage_counts(const Workload& workload, std::uint64_t max_tasks) {
  const int max_per_gpu = (workload.num_layers() + 1) / workload.num_gpus;
  const double tasks_of_one = 2.0 * workload.num_gpus * workload.num_microbatches;
  for (const double growth : {1.0, 1.1, 1.25, 1.5, 2.0, 4.0}) {
    std::vector<int> counts;
    double tasks = 0;
    for (int per_gpu = 1; per_gpu <= max_per_gpu; per_gpu = std::max(per_gpu + 1, static_cast<int>(per_gpu * growth))) {
      counts.push_back(per_gpu * workload.num_gpus);
      tasks += per_gpu * tasks_of_one;
    }
    if (tasks <= static_cast<double>(max_tasks) || growth == 4.0) return counts;
  }
  return {};
}

}  // namespace

std::vector<int> plan_bound_stages(BoundSchedule schedule, const Workload& workload) {
  const bool is_looped = schedule == BoundSchedule::kInterleaved || schedule == BoundSchedule::kLoopedBfs;
  if (workload.num_layers() + 1 < workload.num_gpus) {  // the head may be a stage by itself
    throw Error(ExitCode::kUsage,
                cat("a model of ", workload.num_layers(), " layers and a head has no stage for each of ",
                    workload.num_gpus, " GPUs; this schedule needs one"));
  }
  const std::vector<int> counts =
      is_looped ? stage_counts(workload, kMaxEvenTasks) : std::vector<int>{workload.num_gpus};
  EvenStages even(workload);
  std::vector<Found> found;
  for (const int num_stages : counts) {
    Found& next = found.emplace_back(Found{.stages = even.cut(num_stages)});
    check_bound_stages(schedule, workload, next.stages);
    next.makespan = BoundCost(schedule, workload, num_stages).makespan(next.stages);
  }
  // The cuts that begin best are improved first; of equal ones, those with fewer stages.
  const auto is_shorter = [](const Found& a, const Found& b) { return a.makespan < b.makespan; };
  std::stable_sort(found.begin(), found.end(), is_shorter);
  std::uint64_t tasks_left = kMaxImprovingTasks;
  for (Found& each : found) {
    BoundCost cost(schedule, workload, static_cast<int>(each.stages.size()));
    improve(cost, workload, each, tasks_left);
    if (tasks_left < cost.num_tasks()) break;
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.makespan != b.makespan ? a.makespan < b.makespan : a.stages.size() < b.stages.size();
  });
  return found.front().stages;
}

}  // namespace rp
