#include "scheduler/bound_planner.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// Layers by stage so that the longest stage is as short as can be; the last one has the head and may have no layer beside it.
std::vector<int> even_stages(const Workload& workload, int num_stages) {
  const int num_layers = workload.num_layers();
  std::vector<double> sums(1);
  for (const LayerWork& layer : workload.layers) sums.push_back(sums.back() + 2 * layer.forward + layer.backward);
  const double head = workload.head.forward + workload.head.backward;
  const auto time = [&](int first, int end) { return sums[static_cast<std::size_t>(end)] - sums[static_cast<std::size_t>(first)]; };
  // longest[end]: of the stages so far, over layers [0, end).
  std::vector<std::vector<int>> begins(static_cast<std::size_t>(num_stages), std::vector<int>(sums.size(), -1));
  std::vector<double> longest(sums.size(), INFINITY);
  longest[0] = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    const bool is_last = stage + 1 == num_stages;
    std::vector<double> next(sums.size(), INFINITY);
    for (int end = 0; end <= num_layers; ++end) {
      for (int first = is_last ? end : end - 1; first >= 0; --first) {
        const double here = std::max(longest[static_cast<std::size_t>(first)], time(first, end) + (is_last ? head : 0));
        if (here >= next[static_cast<std::size_t>(end)]) continue;
        next[static_cast<std::size_t>(end)] = here;
        begins[static_cast<std::size_t>(stage)][static_cast<std::size_t>(end)] = first;
      }
    }
    longest.swap(next);
  }
  std::vector<int> counts(static_cast<std::size_t>(num_stages));
  int end = num_layers;
  for (int stage = num_stages; stage-- > 0;) {
    const int first = begins[static_cast<std::size_t>(stage)][static_cast<std::size_t>(end)];
    counts[static_cast<std::size_t>(stage)] = end - first;
    end = first;
  }
  return counts;
}

struct Found {
  std::vector<int> stages;
  double makespan;
};

Found improve(BoundSchedule schedule, const Workload& workload, std::vector<int> stages) {
  const auto makespan = [&](const std::vector<int>& counts) { return simulate(bound_schedule(schedule, workload, counts)).makespan; };
  Found best{.stages = stages, .makespan = makespan(stages)};
  for (bool improved = true; improved;) {
    improved = false;
    // A layer from one stage to the next but one, too: through a chain of equal stages.
    for (std::size_t from = 0; from < stages.size(); ++from) {
      for (std::size_t to = 0; to < stages.size(); ++to) {
        if (from == to || best.stages[from] == (from + 1 == stages.size() ? 0 : 1)) continue;
        std::vector<int> next = best.stages;
        --next[from];
        ++next[to];
        const double time = makespan(next);
        if (time >= best.makespan - 1e-9) continue;
        best = {.stages = std::move(next), .makespan = time};
        improved = true;
      }
    }
  }
  return best;
}

}  // namespace

std::vector<int> plan_bound_stages(BoundSchedule schedule, const Workload& workload) {
  const bool is_looped = schedule == BoundSchedule::kInterleaved || schedule == BoundSchedule::kLoopedBfs;
  const int most_stages = workload.num_layers() + 1;  // the head by itself
  if (most_stages < workload.num_gpus) {
    throw Error(ExitCode::kUsage, cat("a model of ", workload.num_layers(), " layers and a head has no stage for each of ",
                                      workload.num_gpus, " GPUs; this schedule needs one"));
  }
  std::optional<Found> best;
  for (int num_stages = workload.num_gpus; num_stages <= most_stages; num_stages += workload.num_gpus) {
    Found found = improve(schedule, workload, even_stages(workload, num_stages));
    if (!best || found.makespan < best->makespan) best = std::move(found);
    if (!is_looped) break;
  }
  return best->stages;
}

}  // namespace rp
