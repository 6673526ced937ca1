#include "scheduler/planner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "common/check.h"

namespace rp {

namespace {

constexpr std::uint64_t kFastTasks = 13'500'000, kFastTasksOfManyLayers = 65'000'000;
constexpr int kManyLayers = 65;
constexpr std::uint64_t kTournamentTasks = 45'000'000;
// Only steps of very many tasks come near these limits: kMaxBeyond is how much run() may simulate
// beyond its budget, kExactTasks how much may be spent on exact times of seeds.
constexpr std::uint64_t kMaxBeyond = 400'000'000, kExactTasks = 200'000'000;
constexpr std::size_t kField = 8;
constexpr std::size_t kOfferedSeeds = 3;
constexpr std::uint64_t kTasksPerRejection = 30;               // simulated tasks that cost as much as making one change
constexpr double kStartTemperature = 0.02;                     // relative to the step's time
constexpr double kCooling = 0.6, kCoolingAsynchronous = 0.35;  // from turn to turn
constexpr double kCoolingOfATurn = 0.015;
constexpr double kAlike = 1.05;        // the longest layer's time relative to the shortest one's
constexpr double kNearlyBest = 1.002;  // a candidate within this factor of the best gets an exact time

// Allows small differences, since the times may be measured.
bool layers_are_alike(const std::vector<LayerWork>& layers) {
  const auto [least, most] = std::minmax_element(
      layers.begin(), layers.end(),
      [](const LayerWork& a, const LayerWork& b) { return a.forward + a.backward < b.forward + b.backward; });
  return layers.empty() || most->forward + most->backward <= kAlike * (least->forward + least->backward);
}

}  // namespace

PlanChoice fast_plan(const PlanTask& task, std::uint64_t seed) {
  PlanSearch search(task, seed);
  const std::uint64_t num_tasks = task.workload.num_layers() < kManyLayers ? kFastTasks : kFastTasksOfManyLayers;
  search.run(task.asynchronous ? num_tasks / 5 * 6 : num_tasks);  // tasks of chained steps cost less
  return search.best();
}

PlanChoice thorough_plan(const PlanTask& task, std::chrono::milliseconds time) {
  const auto begin = std::chrono::steady_clock::now();
  PlanSearch search(task);
  do {
    search.run(kTournamentTasks);
  } while (std::chrono::steady_clock::now() - begin < time && !search.is_perfect());
  return search.best();
}

PlanSearch::PlanSearch(const PlanTask& task, std::uint64_t seed)
    : task_(task),
      cost_(task_),
      random_(seed),
      ramps_(cost_, static_cast<int>(task_.round_choices.size()), task_.limits.least_fused_start, seed),
      best_ms_(INFINITY) {}

void PlanSearch::offer(const PlanCandidate& candidate) {
  if (candidate.step_ms > best_ms_ * kNearlyBest) return;
  const double exact = cost_.has_horizons() ? cost_.step_ms(candidate.cuts, Horizon::kExact) : candidate.step_ms;
  if (exact >= best_ms_) return;
  best_ = candidate.cuts;
  best_ms_ = exact;
}

void PlanSearch::run(std::uint64_t num_tasks) {
  const std::uint64_t until = effort() + num_tasks;
  ends_at_ = until + kMaxBeyond;
  if (seeds_.empty()) {
    seeds_ = plan_seeds(task_, cost_, random_, num_tasks / (task_.asynchronous ? 8 : 16));
    const std::uint64_t exact_until = cost_.num_simulated_tasks() + kExactTasks;
    for (std::size_t i = 0; i < std::min(seeds_.size(), kOfferedSeeds); ++i) {
      if (i == 0 || cost_.num_simulated_tasks() < exact_until) offer(seeds_[i]);
    }
    offer_greedy(exact_until);
  }
  while (effort() < until && !is_perfect()) run_tournament(std::min(kTournamentTasks, until - effort()));
}

// The plan has the least possible work (the earliest fused stage), and no GPU ever waits.
bool PlanSearch::is_perfect() {
  const int fused_start = best_.forward.empty() ? 0 : best_.forward.back();
  return fused_start == task_.limits.least_fused_start && best_ms_ <= cost_.busy_ms_per_gpu(best_) * (1 + 1e-12);
}

// Offers the greedy cuts, so that the answer is never worse than they are. Their exact times are
// skipped if they cost too much; the cuts are among the seeds anyway.
void PlanSearch::offer_greedy(std::uint64_t exact_until) {
  Cuts cuts = greedy_cuts(cost_.sums(), task_.workload.num_gpus, task_.limits.least_fused_start);
  for (; cuts.round_choice < static_cast<int>(task_.round_choices.size()); ++cuts.round_choice) {
    if (cost_.num_simulated_tasks() >= exact_until) return;
    if (cost_.fits(cuts)) offer({.cuts = cuts, .step_ms = std::min(best_ms_, cost_.step_ms(cuts, Horizon::kExact))});
  }
}

// Improves several seeds a little, then the better half of them more, and so on, since it shows
// early which seed leads to the best plan. All turns except the last are restricted to ramps; if
// layers differ, all except the last two; if GPUs differ, none.
void PlanSearch::run_tournament(std::uint64_t num_tasks) {
  const Horizon horizon = num_tournaments_++ % 2 == 0 ? Horizon::kShort : Horizon::kLong;
  const bool alike = layers_are_alike(task_.workload.layers);
  // While the field has at least this many plans, they are restricted to ramps.
  const std::size_t least_of_ramps = !task_.workload.slowness.empty() ? kField + 1 : alike ? 2 : 4;
  std::vector<PlanCandidate> field;
  while (field.size() < kField) field.push_back(seeds_[next_seed_++ % seeds_.size()]);
  for (std::size_t i = 0; i < field.size(); ++i) {
    if (i > 0 && effort() >= ends_at_) {
      field.resize(i);
    } else {
      field[i].step_ms = cost_.step_ms(field[i].cuts, horizon);
    }
  }
  const auto num_turns = static_cast<std::uint64_t>(std::bit_width(field.size()));
  double temperature = kStartTemperature;
  while (true) {
    for (PlanCandidate& candidate : field) {
      if (effort() >= ends_at_) break;
      const double first = temperature * candidate.step_ms;
      const Annealing how = {.temperature = first,
                             .last_temperature = first * kCoolingOfATurn,
                             .horizon = horizon,
                             .num_tasks = num_tasks / num_turns / field.size(),
                             .max_tasks = ends_at_ - effort()};
      if (field.size() >= least_of_ramps) {
        ramps_.anneal(candidate, how);
      } else {
        anneal(candidate, how);
      }
    }
    std::stable_sort(field.begin(), field.end(), [](const auto& a, const auto& b) { return a.step_ms < b.step_ms; });
    if (field.size() == 1) break;
    field.resize(field.size() / 2);
    temperature *= task_.asynchronous ? kCoolingAsynchronous : kCooling;
  }
  offer(field.front());
}

void PlanSearch::anneal(PlanCandidate& best, const Annealing& how) {
  const std::uint64_t begin = effort(), until = begin + how.num_tasks;
  const double cooling = std::log(how.last_temperature / how.temperature);
  PlanCandidate present = best, next;
  while (effort() < std::min(until, ends_at_)) {
    next.cuts = present.cuts;
    bool changed = mutate(next.cuts);
    while (draw(4) == 0) changed |= mutate(next.cuts);
    if (!changed || next.cuts == present.cuts || !cost_.fits(next.cuts)) {
      rejected_ += kTasksPerRejection;
      continue;
    }
    next.step_ms = cost_.step_ms(next.cuts, how.horizon);
    if (const double worse = next.step_ms - present.step_ms; worse > 0) {
      const double progress = static_cast<double>(effort() - begin) / static_cast<double>(how.num_tasks);
      const double temperature = how.temperature * std::exp(cooling * progress);
      if (static_cast<double>(random_()) > std::exp(-worse / temperature) * 0x1p64) continue;
    }
    std::swap(present, next);
    if (present.step_ms < best.step_ms) best = present;
  }
}

bool PlanSearch::mutate(Cuts& cuts) {
  switch (draw(20)) {
    case 0: return move_fused_start(cuts);
    case 1: {
      const int choice = draw(static_cast<int>(task_.round_choices.size()));
      return choice != std::exchange(cuts.round_choice, choice);
    }
    default: break;
  }
  std::vector<int>& ends = draw(2) == 0 ? cuts.forward : cuts.backward;
  return mutate_ends(ends);
}

bool PlanSearch::mutate_ends(std::vector<int>& ends) {
  const int num_stages = static_cast<int>(ends.size());
  if (num_stages == 0) return false;
  const auto at = [&ends](int stage) -> int& { return ends[stage]; };
  const auto begin = [&](int stage) { return stage > 0 ? at(stage - 1) : 0; };
  const auto size = [&](int stage) { return at(stage) - begin(stage); };
  const int kind = draw(10);
  if (kind < 8) {  // stage b gets layers of stage a: one, or as many as make them exchange their sizes
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
  if (stage + 1 == num_stages) return false;  // the last end is the beginning of the fused stage
  ends.erase(ends.begin() + stage);
  return true;
}

bool PlanSearch::move_fused_start(Cuts& cuts) {
  const int least = task_.limits.least_fused_start;
  const int start = least + draw(cost_.num_layers() - least);
  const int present = cuts.forward.empty() ? 0 : cuts.forward.back();
  if (start == present) return false;
  for (auto* ends : {&cuts.forward, &cuts.backward}) {
    if (start > present && !ends->empty()) ends->pop_back();
    while (!ends->empty() && ends->back() >= start) ends->pop_back();
    if (start > 0) ends->push_back(start);
  }
  return true;
}

PlanChoice PlanSearch::best() {
  RP_ASSERT(std::isfinite(best_ms_));
  return {.plan = plan_of(best_),
          .round_microbatches = task_.round_choices[best_.round_choice],
          .step_ms = best_ms_,
          .lower_bound_ms = cost_.lower_bound_ms(best_),
          .effort = effort()};
}

}  // namespace rp
