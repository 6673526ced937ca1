#include "scheduler/planner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "common/check.h"

namespace rp {

namespace {

constexpr std::uint64_t kFastTasks = 13'500'000, kFastTasksOfManyLayers = 75'000'000;
constexpr int kManyLayers = 65;
constexpr std::uint64_t kTournamentTasks = 45'000'000;
constexpr std::size_t kField = 8;
constexpr std::size_t kOfferedSeeds = 3;
constexpr std::uint64_t kTasksOfAChange = 30;  // that cost as much as to make one
constexpr double kStartTemperature = 0.02;  // of the step's time
constexpr double kCooling = 0.35;
constexpr double kNearlyBest = 1.002;  // so that its exact time is worth knowing

// Nearly always one or two are at the wrong place: no std::sort().
void sort_stages(std::vector<int>& ends) {
  for (std::size_t i = ends.size(); i-- > 1;) ends[i] -= ends[i - 1];
  for (std::size_t i = 1; i < ends.size(); ++i) {
    for (std::size_t j = i; j > 0 && ends[j - 1] > ends[j]; --j) std::swap(ends[j - 1], ends[j]);
  }
  for (std::size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
}

}  // namespace

PlanChoice fast_plan(const PlanTask& task) {
  PlanSearch search(task);
  const std::uint64_t num_tasks = task.workload.num_layers() < kManyLayers ? kFastTasks : kFastTasksOfManyLayers;
  search.run(task.asynchronous ? num_tasks / 3 * 4 : num_tasks);  // whose tasks cost less
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

PlanSearch::PlanSearch(const PlanTask& task, std::uint64_t seed) : task_(task), cost_(task_), random_(seed), best_ms_(INFINITY) {}

void PlanSearch::offer(const PlanCandidate& candidate) {
  if (candidate.step_ms > best_ms_ * kNearlyBest) return;
  const double exact = task_.asynchronous ? cost_.step_ms(candidate.cuts, Horizon::kExact) : candidate.step_ms;
  if (exact >= best_ms_) return;
  best_ = candidate.cuts;
  best_ms_ = exact;
}

void PlanSearch::run(std::uint64_t num_tasks) {
  const std::uint64_t until = effort() + num_tasks;
  if (seeds_.empty()) {
    seeds_ = plan_seeds(task_, cost_, random_, num_tasks / (task_.asynchronous ? 8 : 16));
    for (std::size_t i = 0; i < std::min(seeds_.size(), kOfferedSeeds); ++i) offer(seeds_[i]);
    offer_greedy();
  }
  while (effort() < until && !is_perfect()) run_tournament(std::min(kTournamentTasks, until - effort()));
}

// With as little work as there can be, and no GPU ever waits.
bool PlanSearch::is_perfect() {
  const int fused_start = best_.forward.empty() ? 0 : best_.forward.back();
  return fused_start == task_.limits.least_fused_start && best_ms_ <= cost_.busy_ms_per_gpu(best_) * (1 + 1e-12);
}

// So that no plan is worse than these.
void PlanSearch::offer_greedy() {
  Cuts cuts = greedy_cuts(cost_.sums(), task_.workload.num_gpus, task_.limits.least_fused_start);
  for (; cuts.round_choice < static_cast<int>(task_.round_choices.size()); ++cuts.round_choice) {
    if (cost_.fits(cuts)) offer({.cuts = cuts, .step_ms = std::min(best_ms_, cost_.step_ms(cuts, Horizon::kExact))});
  }
}

// Several seeds are improved a little, the better half of them more, and so on: which of them leads to the best plan shows
// early. All turns but the last keep to plans whose stages grow from layer to layer, as nearly all good ones do: there are far
// fewer of them.
void PlanSearch::run_tournament(std::uint64_t num_tasks) {
  const Horizon horizon = num_tournaments_++ % 2 == 0 ? Horizon::kShort : Horizon::kLong;
  const bool ramps = task_.workload.slowness.empty();
  std::vector<PlanCandidate> field;
  while (field.size() < kField) field.push_back(seeds_[next_seed_++ % seeds_.size()]);
  for (PlanCandidate& candidate : field) candidate.step_ms = cost_.step_ms(candidate.cuts, horizon);
  const auto num_turns = static_cast<std::uint64_t>(std::bit_width(field.size()));
  double temperature = kStartTemperature;
  while (true) {
    for (PlanCandidate& candidate : field) {
      anneal(candidate, {.temperature = temperature, .horizon = horizon, .sorted = ramps && field.size() > 1,
                         .num_tasks = num_tasks / num_turns / field.size()});
    }
    std::stable_sort(field.begin(), field.end(), [](const auto& a, const auto& b) { return a.step_ms < b.step_ms; });
    if (field.size() == 1) break;
    field.resize(field.size() / 2);
    temperature *= kCooling;
  }
  offer(field.front());
}

void PlanSearch::anneal(PlanCandidate& best, const Annealing& how) {
  const std::uint64_t begin = effort(), until = begin + how.num_tasks;
  const double temperature = how.temperature * best.step_ms;
  PlanCandidate present = best, next;
  while (effort() < until) {
    next.cuts = present.cuts;
    bool changed = mutate(next.cuts, how.sorted);
    while (draw(4) == 0) changed |= mutate(next.cuts, how.sorted);
    if (!changed || next.cuts == present.cuts || !cost_.fits(next.cuts)) {
      rejected_ += kTasksOfAChange;
      continue;
    }
    next.step_ms = cost_.step_ms(next.cuts, how.horizon);
    if (const double worse = next.step_ms - present.step_ms; worse > 0) {
      const double progress = static_cast<double>(effort() - begin) / static_cast<double>(how.num_tasks);
      const double cooled = temperature * std::pow(kCooling, 4 * progress);
      if (static_cast<double>(random_()) > std::exp(-worse / cooled) * 0x1p64) continue;
    }
    std::swap(present, next);
    if (present.step_ms < best.step_ms) best = present;
  }
}

bool PlanSearch::mutate(Cuts& cuts, bool sorted) {
  switch (draw(20)) {
    case 0: return move_fused_start(cuts);
    case 1: {
      const int choice = draw(static_cast<int>(task_.round_choices.size()));
      return choice != std::exchange(cuts.round_choice, choice);
    }
    default: break;
  }
  std::vector<int>& ends = draw(2) == 0 ? cuts.forward : cuts.backward;
  if (!mutate_ends(ends)) return false;
  if (sorted) sort_stages(ends);
  return true;
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
          .round_microbatches = task_.round_choices[static_cast<std::size_t>(best_.round_choice)],
          .step_ms = best_ms_,
          .lower_bound_ms = cost_.lower_bound_ms(best_)};
}

}  // namespace rp
