#include "scheduler/plan_seeds.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace rp {

namespace {

constexpr std::size_t kMaxSeeds = 64;
// The maximum numbers of shapes that are estimated, and of longest times of a stage that the greedy
// cut tries. Models of 94 layers with 2 layers in addition to the head stay below, with up to nine
// choices of rounds. Beyond the maximum, shapes and times are sampled at equal distances.
constexpr std::size_t kMaxShapes = 250'000, kMaxGreedyLimits = 4096;
constexpr int kMaxStarts = 16;  // of the fused stage, if there are too many shapes to estimate all

double at(const std::vector<double>& sums, int layer) { return sums[layer]; }

// Returns the values of [first, end), or if there are more than `most`, that many at equal
// distances, including the first and the last.
std::vector<int> spaced(int first, int end, int most) {
  std::vector<int> values;
  const int count = end - first;
  if (count <= most) {
    for (int value = first; value < end; ++value) values.push_back(value);
    return values;
  }
  for (int i = 0; i < most; ++i)
    values.push_back(first + static_cast<int>(static_cast<std::int64_t>(count - 1) * i / std::max(1, most - 1)));
  return values;
}

// Returns the ends of stages over layers [0, end), where stage i takes about min(longest, (i + 1) *
// slope) ms.
std::vector<int> pack(const std::vector<double>& sums, int end, double longest, double slope) {
  std::vector<int> ends;
  double limit = slope;
  for (int cut = 0; cut < end; limit += slope) {
    const double bound = at(sums, cut) + std::min(limit, longest);
    ++cut;
    while (cut < end && at(sums, cut + 1) <= bound) ++cut;
    ends.push_back(cut);
  }
  return ends;
}

// Returns the ends of `num_stages` stages over layers [0, end) that take about the same time.
std::vector<int> spread(const std::vector<double>& sums, int end, int num_stages) {
  std::vector<int> ends;
  int cut = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    const double wanted = at(sums, end) * (stage + 1) / num_stages;
    const int most = end - (num_stages - 1 - stage);  // leaves one layer for each stage that follows
    const auto distance = [&](int layer) { return std::abs(at(sums, layer) - wanted); };
    ++cut;
    while (cut < most && distance(cut + 1) <= distance(cut)) ++cut;
    ends.push_back(cut);
  }
  if (!ends.empty()) ends.back() = end;
  return ends;
}

// Consecutive stages and sums of their times.
struct TimedStages {
  std::vector<int> ends;
  double longest = 0;
  int count = 0;
  // Element [c][r]: the sum over every c-th stage, beginning with stage r. Filled for the divisors
  // c of the number of GPUs.
  std::vector<std::vector<double>> loads{};
};

TimedStages timed_stages(const std::vector<double>& sums, std::vector<int> ends, bool reversed, int num_gpus) {
  TimedStages stages{.ends = std::move(ends)};
  std::vector<double> list;
  int first = 0;
  for (const int end : stages.ends) list.push_back(at(sums, end) - at(sums, std::exchange(first, end)));
  if (reversed) std::reverse(list.begin(), list.end());
  stages.count = static_cast<int>(list.size());
  stages.loads.resize(static_cast<std::size_t>(num_gpus) + 1);
  for (int classes = 1; classes <= num_gpus; ++classes) {
    if (num_gpus % classes != 0) continue;
    auto& loads = stages.loads[classes];
    loads.resize(classes);
    for (std::size_t i = 0; i < list.size(); ++i) loads[i % loads.size()] += list[i];
  }
  for (const double length : list) stages.longest = std::max(stages.longest, length);
  return stages;
}

class Seeds {
 public:
  Seeds(const PlanTask& task, PlanCost& cost, std::mt19937_64& random)
      : task_(task), cost_(cost), sums_(cost.sums()), random_(random) {}

  void add(const Cuts& cuts) {
    if (cost_.fits(cuts)) seeds_.push_back({cuts, cost_.step_ms(cuts, Horizon::kShort)});
  }
  void add_greedy() {
    Cuts cuts = greedy_cuts(sums_, task_.workload.num_gpus, task_.limits.least_fused_start);
    for (cuts.round_choice = 0; cuts.round_choice < num_choices(); ++cuts.round_choice) add(cuts);
  }
  void add_even(std::uint64_t num_tasks);
  void add_ramps(std::uint64_t num_tasks);
  void add_shared(int most_kept_inputs, std::uint64_t num_tasks);
  void add_single_layers() {
    Cuts cuts;
    for (int end = 1; end < cost_.num_layers(); ++end) cuts.forward.push_back(end);
    cuts.backward = cuts.forward;
    add(cuts);
  }
  void add_longest() { add(longest_cuts(task_.limits, cost_.num_layers())); }
  [[nodiscard]] std::vector<PlanCandidate> take() { return std::move(seeds_); }
  [[nodiscard]] bool empty() const { return seeds_.empty(); }

 private:
  [[nodiscard]] int num_choices() const { return static_cast<int>(task_.round_choices.size()); }
  // Returns where the fused stage may begin. `shapes_of_a_start`: the number of shapes to estimate
  // for each.
  [[nodiscard]] std::vector<int> starts(std::size_t shapes_of_a_start) const {
    const int least = task_.limits.least_fused_start, end = cost_.num_layers();
    const bool all = static_cast<std::size_t>(end - least) * shapes_of_a_start <= kMaxShapes;
    return spaced(least, end, all ? end - least : kMaxStarts);
  }

  const PlanTask& task_;
  PlanCost& cost_;
  const StageSums& sums_;
  std::mt19937_64& random_;
  std::vector<PlanCandidate> seeds_;
};

// Asynchronous steps have no beginning and no end, so stages are as even as possible and all GPUs
// get the same amount of work. Each GPU runs all stages in turn, unless the numbers of stages
// and of GPUs have a common divisor.
void Seeds::add_even(std::uint64_t num_tasks) {
  struct Shape {
    double estimate;
    int start, forward, backward, round_choice;  // start: index into fused_starts
  };
  const int num_gpus = task_.workload.num_gpus, num_layers = cost_.num_layers();
  std::vector<Shape> shapes;
  const auto choices = static_cast<std::size_t>(num_choices());
  const std::vector<int> fused_starts =
      starts(static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(num_layers) * choices);
  const std::size_t shapes_of_a_start = kMaxShapes / (fused_starts.size() * choices);
  const auto max_counts = static_cast<int>(std::sqrt(static_cast<double>(shapes_of_a_start)));
  // By fused start and number of stages.
  std::vector<std::vector<TimedStages>> forwards, backwards;
  for (std::size_t place = 0; place < fused_starts.size(); ++place) {
    const int start = fused_starts[place];
    auto& of_forward = forwards.emplace_back();
    auto& of_backward = backwards.emplace_back();
    for (const int n : spaced(start > 0 ? 1 : 0, start + 1, std::max(max_counts, 1))) {
      of_forward.push_back(timed_stages(sums_.forward(), spread(sums_.forward(), start, n), false, num_gpus));
      of_backward.push_back(timed_stages(sums_.backward(), spread(sums_.backward(), start, n), true, num_gpus));
    }
    const double fused = at(sums_.backward(), num_layers) - at(sums_.backward(), start);
    for (int f = 0; f < static_cast<int>(of_forward.size()); ++f) {
      const TimedStages& forward = of_forward[f];
      for (int b = 0; b < static_cast<int>(of_backward.size()); ++b) {
        const TimedStages& backward = of_backward[b];
        const int classes = std::gcd(forward.count + 1 + backward.count, num_gpus);
        const auto& forward_loads = forward.loads[classes];
        const auto& backward_loads = backward.loads[classes];
        double load = 0;
        for (int r = 0; r < classes; ++r) {
          const int of_fused = forward.count % classes;
          const double of_gpu = forward_loads[r] + (r == of_fused ? fused : 0) +
                                backward_loads[(r + 2 * classes - of_fused - 1) % classes];
          load = std::max(load, of_gpu);
        }
        const double longest = std::max({forward.longest, fused, backward.longest});
        load *= static_cast<double>(classes) * task_.workload.num_microbatches / num_gpus;
        for (int choice = 0; choice < num_choices(); ++choice) {
          const double laps = task_.round_choices[choice] > num_gpus ? 0 : 1;
          shapes.push_back({load + longest / 4 + laps * longest, static_cast<int>(place), f, b, choice});
        }
      }
    }
  }
  std::stable_sort(shapes.begin(), shapes.end(),
                   [](const Shape& a, const Shape& b) { return a.estimate < b.estimate; });
  const std::uint64_t until = cost_.num_simulated_tasks() + num_tasks;
  for (const Shape& shape : shapes) {
    if (cost_.num_simulated_tasks() >= until) break;
    const auto start = static_cast<std::size_t>(shape.start);
    add({.forward = forwards[start][shape.forward].ends,
         .backward = backwards[start][shape.backward].ends,
         .round_choice = shape.round_choice});
  }
}

// For a step by itself: the first stages are short, so that all GPUs begin soon, and so are the
// last ones, so that all end together.
void Seeds::add_ramps(std::uint64_t num_tasks) {
  const double flow = (sums_.forward().back() + sums_.backward().back()) / task_.workload.num_gpus;
  struct Shape {
    int start, round_choice;
    double longest_forward, longest_backward, slope_forward, slope_backward;
  };
  std::vector<Shape> shapes;
  constexpr std::size_t kRamps = 7 * 3 * 4 * 4;
  const std::vector<int> fused_starts = starts(kRamps * static_cast<std::size_t>(num_choices()));
  for (const double stages_per_gpu : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0}) {
    const double longest = flow / stages_per_gpu;
    for (const double of_forward : {0.75, 1.0, 1.4}) {
      for (const double slope_forward : {0.06, 0.12, 0.25, 1.0}) {
        for (const double slope_backward : {0.06, 0.12, 0.25, 1.0}) {
          for (const int start : fused_starts) {
            for (int choice = 0; choice < num_choices(); ++choice) {
              shapes.push_back(
                  {start, choice, of_forward * longest, longest, slope_forward * longest, slope_backward * longest});
            }
          }
        }
      }
    }
  }
  std::shuffle(shapes.begin(), shapes.end(), random_);  // the first part of them, however long, is a fair sample
  const std::uint64_t until = cost_.num_simulated_tasks() + num_tasks;
  for (const Shape& shape : shapes) {
    if (cost_.num_simulated_tasks() >= until) break;
    add({.forward = pack(sums_.forward(), shape.start, shape.longest_forward, shape.slope_forward),
         .backward = pack(sums_.backward(), shape.start, shape.longest_backward, shape.slope_backward),
         .round_choice = shape.round_choice});
  }
}

// Forward stages that end where backward stages end keep no inputs of their own.
void Seeds::add_shared(int most_kept_inputs, std::uint64_t num_tasks) {
  constexpr int kMostBackwardPerForward = 4;
  const std::uint64_t until = cost_.num_simulated_tasks() + num_tasks;
  for (const int start : starts(static_cast<std::size_t>(most_kept_inputs) * kMostBackwardPerForward)) {
    for (int num_stages = std::min(start, most_kept_inputs); num_stages > 0; --num_stages) {
      Cuts cuts{.backward = spread(sums_.backward(), start, num_stages)};
      for (int together = 1; together <= std::min(num_stages, kMostBackwardPerForward); ++together) {
        if (cost_.num_simulated_tasks() >= until) return;
        cuts.forward.clear();
        for (int i = (num_stages - 1) % together; i < num_stages; i += together)
          cuts.forward.push_back(cuts.backward[i]);
        for (cuts.round_choice = 0; cuts.round_choice < num_choices(); ++cuts.round_choice) add(cuts);
      }
    }
  }
}

// Returns the ends of stages over layers [0, end) of at most `longest` ms, or of one layer, packed
// from the deep end or from the other end.
std::vector<int> pack_greedily(const std::vector<double>& sums, int end, double longest, bool from_deep_end) {
  std::vector<int> ends;
  if (from_deep_end) {
    for (int cut = end; cut > 0;) {
      ends.push_back(cut);
      const double least = at(sums, cut) - longest;
      --cut;
      while (cut > 0 && at(sums, cut - 1) >= least) --cut;
    }
    std::reverse(ends.begin(), ends.end());
  } else {
    ends = pack(sums, end, longest, longest);
  }
  return ends;
}

}  // namespace

Cuts greedy_cuts(const StageSums& sums, int num_gpus, int least_fused_start) {
  constexpr double kLongestOverLayer = 1.1, kRounding = 1 + 1e-9;
  const std::vector<double>&forward = sums.forward(), &backward = sums.backward();
  const int num_layers = static_cast<int>(forward.size()) - 1;
  double longest_layer = 0;
  for (int layer = 0; layer < num_layers; ++layer)
    longest_layer = std::max(longest_layer, at(backward, layer + 1) - at(backward, layer));
  std::vector<double> limits;
  for (const auto* list : {&forward, &backward}) {
    for (int first = 0; first < num_layers; ++first) {
      for (int end = first + 1; end <= num_layers; ++end) {
        const double sum = at(*list, end) - at(*list, first);
        if (sum > longest_layer * kLongestOverLayer) break;
        if (sum * kRounding >= longest_layer) limits.push_back(sum);
      }
    }
  }
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  Cuts best;
  double least = INFINITY;
  for (const int number : spaced(0, static_cast<int>(limits.size()), kMaxGreedyLimits)) {
    const double limit = limits[number];
    const double longest = limit * kRounding;
    int start = num_layers - 1;
    while (start > least_fused_start && at(backward, num_layers) - at(backward, start - 1) <= longest) --start;
    Cuts cuts{.forward = pack_greedily(forward, start, longest, true),
              .backward = pack_greedily(backward, start, longest, false)};
    const auto num_stages = static_cast<double>(cuts.forward.size() + 1 + cuts.backward.size());
    const double time = std::max(num_stages, static_cast<double>(num_gpus)) * limit;
    if (time >= least) continue;
    least = time;
    best = std::move(cuts);
  }
  return best;
}

std::vector<PlanCandidate> plan_seeds(const PlanTask& task, PlanCost& cost, std::mt19937_64& random,
                                      std::uint64_t num_tasks) {
  Seeds maker(task, cost, random);
  maker.add_greedy();
  if (task.asynchronous) {
    maker.add_even(num_tasks);
  } else {
    maker.add_ramps(num_tasks);
  }
  if (task.limits.most_kept_inputs) maker.add_shared(*task.limits.most_kept_inputs, num_tasks);
  if (maker.empty()) maker.add_single_layers();
  if (maker.empty()) maker.add_longest();
  std::vector<PlanCandidate> seeds = maker.take();
  std::stable_sort(seeds.begin(), seeds.end(), [](const auto& a, const auto& b) { return a.step_ms < b.step_ms; });
  std::set<std::tuple<std::size_t, std::size_t, int>> shapes;
  std::erase_if(seeds, [&](const PlanCandidate& seed) {
    return !shapes.emplace(seed.cuts.forward.size(), seed.cuts.backward.size(), seed.cuts.round_choice).second;
  });
  if (seeds.size() > kMaxSeeds) seeds.resize(kMaxSeeds);
  return seeds;
}

}  // namespace rp
