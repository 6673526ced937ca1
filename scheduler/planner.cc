#include "scheduler/planner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::uint64_t kTournamentTasks = 30'000'000;
constexpr std::size_t kField = 8;
constexpr std::size_t kMaxSeeds = 64;
constexpr double kStartTemperature = 0.003;  // of the cost
constexpr double kCooling = 0.35;

// Steps that a search simulates to compare asynchronous plans, and that count.
struct Horizon {
  int from;
  int to;
};
constexpr Horizon kSearched{8, 24}, kExact{40, 200};

}  // namespace

PlanSearch::PlanSearch(PlanTask task, std::uint64_t seed)
    : task_(std::move(task)), num_layers_(task_.workload.num_layers() + 1), sums_(task_.workload), random_(seed) {
  const auto refuse = [](const std::string& what) { throw Error(ExitCode::kUsage, what); };
  if (task_.workload.num_gpus < 1) refuse("a plan needs at least one GPU");
  if (task_.round_choices.empty()) refuse("a plan needs a number of microbatches a round");
  for (const int round : task_.round_choices) {
    if (round < 1 || task_.workload.num_microbatches % round != 0) {
      refuse(cat("rounds of ", round, " microbatches do not make a step of ", task_.workload.num_microbatches));
    }
    Workload workload = task_.workload;
    workload.round_microbatches = round;
    simulators_.emplace_back(workload);
    workloads_.push_back(std::move(workload));
  }
  if (!task_.bytes.empty() && task_.bytes.size() != static_cast<std::size_t>(num_layers_)) {
    refuse(cat("there are ", task_.bytes.size(), " sizes of weights for ", num_layers_, " layers with the head"));
  }
  byte_sums_.assign(1, 0);
  for (const std::uint64_t bytes : task_.bytes) byte_sums_.push_back(byte_sums_.back() + bytes);
  best_.cost = INFINITY;
}

Plan PlanSearch::plan_of(const Cuts& cuts) {
  Plan plan;
  int first = 0;
  for (const int end : cuts.forward) plan.forward.push_back({std::exchange(first, end), end});
  plan.fused_start = first;
  first = 0;
  for (const int end : cuts.backward) plan.backward.push_back({std::exchange(first, end), end});
  std::reverse(plan.backward.begin(), plan.backward.end());
  return plan;
}

void PlanSearch::fill_stages(const Cuts& cuts) {
  stages_.clear();
  int first = 0;
  for (const int end : cuts.forward) stages_.push_back(sums_.stage(TaskKind::kForward, {std::exchange(first, end), end}));
  stages_.push_back(sums_.stage(TaskKind::kFused, {first, num_layers_}));
  for (std::size_t i = cuts.backward.size(); i-- > 0;) {
    stages_.push_back(sums_.stage(TaskKind::kBackward, {i > 0 ? cuts.backward[i - 1] : 0, cuts.backward[i]}));
  }
}

double PlanSearch::cost(const Cuts& cuts, bool exact) {
  fill_stages(cuts);
  const auto choice = static_cast<std::size_t>(cuts.round_choice);
  const std::uint64_t tasks = stages_.size() * static_cast<std::uint64_t>(task_.workload.num_microbatches);
  if (!task_.asynchronous) {
    num_tasks_ += tasks;
    return simulators_[choice].makespan(stages_);
  }
  const Horizon horizon = exact ? kExact : kSearched;
  num_tasks_ += tasks * static_cast<std::uint64_t>(horizon.to);
  return simulators_[choice].period(stages_, horizon.from, horizon.to);
}

bool PlanSearch::fits(const Cuts& cuts) const {
  if (task_.bytes.empty()) return true;
  const auto is_small = [this](int first, int end) {
    return end - first <= 1 ||
           byte_sums_[static_cast<std::size_t>(end)] - byte_sums_[static_cast<std::size_t>(first)] <= task_.max_stage_bytes;
  };
  int first = 0;
  for (const int end : cuts.forward) {
    if (!is_small(std::exchange(first, end), end)) return false;
  }
  if (!is_small(first, num_layers_)) return false;
  first = 0;
  return std::all_of(cuts.backward.begin(), cuts.backward.end(), [&](int end) { return is_small(std::exchange(first, end), end); });
}

// Stages over layers [0, end): stage i takes about min(longest, first + i * slope) ms.
std::vector<int> PlanSearch::pack(const std::vector<double>& sums, int end, double longest, double slope) {
  std::vector<int> ends;
  double limit = slope;
  for (int cut = 0; cut < end; limit += slope) {
    const double begin = sums[static_cast<std::size_t>(cut)];
    const double bound = begin + std::min(limit, longest);
    ++cut;
    while (cut < end && sums[static_cast<std::size_t>(cut) + 1] <= bound) ++cut;
    ends.push_back(cut);
  }
  return ends;
}

// Stages over layers [0, end) that take about as long.
std::vector<int> PlanSearch::spread(const std::vector<double>& sums, int end, int num_stages) {
  std::vector<int> ends;
  int cut = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    const double wanted = sums[static_cast<std::size_t>(end)] * (stage + 1) / num_stages;
    const int most = end - (num_stages - 1 - stage);  // one layer for each that follows
    const auto distance = [&](int at) { return std::abs(sums[static_cast<std::size_t>(at)] - wanted); };
    ++cut;
    while (cut < most && distance(cut + 1) <= distance(cut)) ++cut;
    ends.push_back(cut);
  }
  if (!ends.empty()) ends.back() = end;
  return ends;
}

// Asynchronous steps have no beginning and no end: stages as even as possible, and GPUs that get the same work. A GPU meets
// all stages unless their number and that of the GPUs have a common divisor.
void PlanSearch::seed_even(std::uint64_t num_tasks) {
  struct Shape {
    double estimate;
    Cuts cuts;
  };
  std::vector<Shape> shapes;
  const int num_gpus = task_.workload.num_gpus;
  for (int start = least_fused_start(); start < num_layers_; ++start) {
    std::vector<std::vector<int>> forward, backward;
    for (int n = start > 0 ? 1 : 0; n <= start; ++n) {
      forward.push_back(spread(sums_.forward(), start, n));
      backward.push_back(spread(sums_.backward(), start, n));
    }
    for (const std::vector<int>& of_forward : forward) {
      for (const std::vector<int>& of_backward : backward) {
        Cuts cuts{.forward = of_forward, .backward = of_backward};
        if (!fits(cuts)) continue;
        fill_stages(cuts);
        const int classes = std::gcd(static_cast<int>(stages_.size()), num_gpus);
        std::vector<double> loads(static_cast<std::size_t>(classes));
        double longest = 0;
        for (std::size_t i = 0; i < stages_.size(); ++i) {
          const double length = stages_[i].time.lead + stages_[i].time.work;
          loads[i % loads.size()] += length;
          longest = std::max(longest, length);
        }
        const double load = *std::max_element(loads.begin(), loads.end()) * classes * task_.workload.num_microbatches / num_gpus;
        for (cuts.round_choice = 0; cuts.round_choice < static_cast<int>(task_.round_choices.size()); ++cuts.round_choice) {
          const double laps = task_.round_choices[static_cast<std::size_t>(cuts.round_choice)] > num_gpus ? 0 : 1;
          shapes.push_back({load + longest / 4 + laps * longest, cuts});
        }
      }
    }
  }
  std::stable_sort(shapes.begin(), shapes.end(), [](const Shape& a, const Shape& b) { return a.estimate < b.estimate; });
  const std::uint64_t until = num_tasks_ + num_tasks;
  for (const Shape& shape : shapes) {
    if (num_tasks_ >= until) break;
    seeds_.push_back({shape.cuts, cost(shape.cuts, false)});
  }
}

// A step by itself: the first stages are short, so that all GPUs begin soon, and so are the last ones.
void PlanSearch::seed_ramps(std::uint64_t num_tasks) {
  const double flow = (sums_.forward().back() + sums_.backward().back()) / task_.workload.num_gpus;
  struct Shape {
    int start, round_choice;
    double longest_forward, longest_backward, slope_forward, slope_backward;
  };
  std::vector<Shape> shapes;
  for (const double stages_per_gpu : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0}) {
    const double longest = flow / stages_per_gpu;
    for (const double of_forward : {0.75, 1.0, 1.4}) {
      for (const double slope_forward : {0.06, 0.12, 0.25, 1.0}) {
        for (const double slope_backward : {0.06, 0.12, 0.25, 1.0}) {
          for (int start = least_fused_start(); start < num_layers_; ++start) {
            for (int choice = 0; choice < static_cast<int>(task_.round_choices.size()); ++choice) {
              shapes.push_back({start, choice, of_forward * longest, longest, slope_forward * longest, slope_backward * longest});
            }
          }
        }
      }
    }
  }
  std::shuffle(shapes.begin(), shapes.end(), random_);  // any part of them is a fair choice
  const std::uint64_t until = num_tasks_ + num_tasks;
  for (const Shape& shape : shapes) {
    if (num_tasks_ >= until) break;
    Cuts cuts{.forward = pack(sums_.forward(), shape.start, shape.longest_forward, shape.slope_forward),
              .backward = pack(sums_.backward(), shape.start, shape.longest_backward, shape.slope_backward),
              .round_choice = shape.round_choice};
    if (fits(cuts)) seeds_.push_back({cuts, cost(cuts, false)});
  }
}

void PlanSearch::seed_candidates(std::uint64_t num_tasks) {
  if (task_.asynchronous) {
    seed_even(num_tasks);
  } else {
    seed_ramps(num_tasks);
  }
  if (seeds_.empty()) {  // each layer by itself: what is larger than a stage's memory is so in any plan
    Cuts cuts;
    for (int end = 1; end < num_layers_; ++end) cuts.forward.push_back(end);
    cuts.backward = cuts.forward;
    seeds_.push_back({cuts, cost(cuts, false)});
  }
  std::stable_sort(seeds_.begin(), seeds_.end(), [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  // Of those with as many stages the best one.
  std::set<std::tuple<std::size_t, std::size_t, int>> shapes;
  std::erase_if(seeds_, [&](const Candidate& seed) {
    return !shapes.emplace(seed.cuts.forward.size(), seed.cuts.backward.size(), seed.cuts.round_choice).second;
  });
  if (seeds_.size() > kMaxSeeds) seeds_.resize(kMaxSeeds);
  offer(seeds_.front());
}

void PlanSearch::offer(const Candidate& candidate) {
  if (candidate.cost > best_.cost * 1.002) return;
  const double exact = task_.asynchronous ? cost(candidate.cuts, true) : candidate.cost;
  if (exact < best_.cost) best_ = {candidate.cuts, exact};
}

void PlanSearch::run(std::uint64_t num_tasks) {
  const std::uint64_t until = num_tasks_ + num_tasks;
  if (seeds_.empty()) seed_candidates(num_tasks / 4);
  while (num_tasks_ < until) run_tournament(std::min(kTournamentTasks, until - num_tasks_));
}

// Several seeds are improved a little, the better half of them more, and so on: which of them leads to the best plan shows
// early.
void PlanSearch::run_tournament(std::uint64_t num_tasks) {
  std::vector<Candidate> field;
  while (field.size() < kField) field.push_back(seeds_[next_seed_++ % seeds_.size()]);
  if (next_seed_ > seeds_.size()) field.back() = best_;
  const auto num_turns = static_cast<std::uint64_t>(std::bit_width(field.size()));
  double temperature = kStartTemperature;
  while (true) {
    for (Candidate& candidate : field) anneal(candidate, temperature, num_tasks / num_turns / field.size());
    std::stable_sort(field.begin(), field.end(), [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
    if (field.size() == 1) break;
    field.resize(field.size() / 2);
    temperature *= kCooling;
  }
  offer(field.front());
}

void PlanSearch::anneal(Candidate& best, double start_temperature, std::uint64_t num_tasks) {
  const std::uint64_t begin = num_tasks_, until = num_tasks_ + num_tasks;
  const double temperature = start_temperature * best.cost;
  Candidate present = best, next;
  while (num_tasks_ < until) {
    next.cuts = present.cuts;
    if (!mutate(next.cuts) || !fits(next.cuts)) {
      ++num_tasks_;  // so that it ends where nothing can be changed
      continue;
    }
    next.cost = cost(next.cuts, false);
    const double progress = static_cast<double>(num_tasks_ - begin) / static_cast<double>(num_tasks);
    const double worse = (next.cost - present.cost) / (temperature * std::pow(kCooling, 4 * progress));
    if (worse > 0 && static_cast<double>(random_()) > std::exp(-worse) * 0x1p64) continue;
    std::swap(present, next);
    if (present.cost < best.cost) best = present;
  }
}

bool PlanSearch::mutate(Cuts& cuts) {
  switch (draw(20)) {
    case 0: return move_fused_start(cuts);
    case 1: {
      const int choice = draw(static_cast<int>(task_.round_choices.size()));
      return choice != std::exchange(cuts.round_choice, choice);
    }
    default: return mutate_ends(draw(2) == 0 ? cuts.forward : cuts.backward);
  }
}

bool PlanSearch::mutate_ends(std::vector<int>& ends) {
  const int num_stages = static_cast<int>(ends.size());
  if (num_stages == 0) return false;
  const auto at = [&ends](int stage) -> int& { return ends[static_cast<std::size_t>(stage)]; };
  const auto begin = [&](int stage) { return stage > 0 ? at(stage - 1) : 0; };
  const auto size = [&](int stage) { return at(stage) - begin(stage); };
  const int kind = draw(10);
  if (kind < 8) {  // stage b gets layers of stage a: one, or so many that they exchange their sizes
    const int a = draw(num_stages);
    const int b = kind < 4 ? a + (draw(2) == 0 ? 1 : -1) : draw(num_stages);
    const int layers = kind < 7 ? 1 : size(a) - (b >= 0 && b < num_stages ? size(b) : 0);
    if (b < 0 || b >= num_stages || a == b || layers < 1 || size(a) <= layers) return false;
    for (int stage = std::min(a, b); stage < std::max(a, b); ++stage) at(stage) += a < b ? -layers : layers;
    return true;
  }
  const int stage = draw(num_stages);
  if (kind == 8) {
    if (size(stage) < 2) return false;
    ends.insert(ends.begin() + stage, begin(stage) + 1 + draw(size(stage) - 1));
    return true;
  }
  if (stage + 1 == num_stages) return false;  // the last end is where the fused stage begins
  ends.erase(ends.begin() + stage);
  return true;
}

bool PlanSearch::move_fused_start(Cuts& cuts) {
  const int least = least_fused_start();
  const int start = least + draw(num_layers_ - least);
  const int present = cuts.forward.empty() ? 0 : cuts.forward.back();
  if (start == present) return false;
  for (auto* ends : {&cuts.forward, &cuts.backward}) {
    if (start > present && !ends->empty()) ends->pop_back();
    while (!ends->empty() && ends->back() >= start) ends->pop_back();
    if (start > 0) ends->push_back(start);
  }
  return true;
}

PlanChoice PlanSearch::best() const {
  RP_ASSERT(std::isfinite(best_.cost));
  const auto choice = static_cast<std::size_t>(best_.cuts.round_choice);
  PlanChoice result{.plan = plan_of(best_.cuts), .round_microbatches = task_.round_choices[choice], .step_ms = best_.cost};
  result.lower_bound_ms = rp::lower_bound_ms(workloads_[choice], stage_works(workloads_[choice], result.plan));
  return result;
}

}  // namespace rp
