#include "scheduler/ramp_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/random_seed.h"

namespace rp {

namespace {

constexpr std::uint64_t kTasksPerChange = 100;  // simulated tasks that cost as much as trying one change
constexpr std::size_t kMaxKnown = std::size_t{1} << 14;
constexpr int kChangesOfATemperature = 32;

}  // namespace

RampSearch::RampSearch(PlanCost& cost, int num_round_choices, int least_fused_start, std::uint64_t seed)
    : cost_(cost),
      num_round_choices_(num_round_choices),
      least_fused_start_(least_fused_start),
      random_(seed),
      counts_(cost.num_layers()),
      known_(kMaxKnown) {
  std::uint64_t state = 0;
  for (std::vector<std::uint64_t>& keys : keys_) {
    keys.push_back(0);
    for (int length = 1; length < cost.num_layers(); ++length) keys.push_back(splitmix64(state));
  }
}

std::uint64_t RampSearch::effort_of_changes() const { return num_changes_ * kTasksPerChange; }

std::size_t RampSearch::draw(std::size_t below) { return (splitmix64(random_) >> 32) * below >> 32; }

void RampSearch::set_length(std::size_t side, std::size_t stage, int length) {
  std::vector<int>& lengths = next_.lengths[side];
  if (stage == lengths.size()) lengths.push_back(0);
  const std::vector<std::uint64_t>& keys = keys_[side];
  next_.key += keys[length] - keys[lengths[stage]];
  lengths[stage] = length;
  if (length > 0) return;
  lengths[stage] = lengths.back();
  lengths.pop_back();
}

RampSearch::Ramp RampSearch::ramp_of(const Cuts& cuts) {
  next_ = {.lengths = {}, .round_choice = cuts.round_choice};
  for (const std::size_t side : {0U, 1U}) {
    int first = 0;
    for (const int end : side == 0 ? cuts.forward : cuts.backward) {
      set_length(side, next_.lengths[side].size(), end - std::exchange(first, end));
    }
  }
  return next_;
}

const Cuts& RampSearch::cuts_of(const Ramp& ramp) {
  cuts_.round_choice = ramp.round_choice;
  for (const std::size_t side : {0U, 1U}) {
    std::fill(counts_.begin(), counts_.end(), 0);
    int left = static_cast<int>(ramp.lengths[side].size());
    for (const int length : ramp.lengths[side]) ++counts_[length];
    std::vector<int>& ends = side == 0 ? cuts_.forward : cuts_.backward;
    ends.clear();
    int end = 0;
    for (int length = 1; left > 0; ++length) {
      for (int i = counts_[length]; i > 0; --i, --left) ends.push_back(end += length);
    }
  }
  return cuts_;
}

double RampSearch::step_ms(const Ramp& ramp, Horizon horizon) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;
  const std::uint64_t key =
      ramp.key + kOdd * static_cast<std::uint64_t>(1 + 3 * ramp.round_choice + static_cast<int>(horizon));
  Known& known = known_[key % kMaxKnown];
  if (known.key != key) {
    const Cuts& cuts = cuts_of(ramp);
    known = {.key = key, .step_ms = cost_.fits(cuts) ? cost_.step_ms(cuts, horizon) : INFINITY};
  }
  return known.step_ms;
}

void RampSearch::anneal(PlanCandidate& best, const Annealing& how) {
  const auto effort = [this] { return cost_.num_simulated_tasks() + effort_of_changes(); };
  const std::uint64_t begin = effort();
  Ramp present = ramp_of(best.cuts);
  double present_ms = step_ms(present, how.horizon);
  const double cooling = std::log(how.last_temperature / how.temperature);
  const auto num_tasks = static_cast<double>(how.num_tasks);
  for (double progress = 0; progress < 1; progress = static_cast<double>(effort() - begin) / num_tasks) {
    const double temperature = how.temperature * std::exp(cooling * progress);
    for (int i = 0; i < kChangesOfATemperature; ++i) {
      if (effort() - begin >= how.max_tasks) return;
      ++num_changes_;
      bool changed = mutate();
      while (draw(3) == 0) changed |= mutate();
      if (!changed) continue;
      const bool same = next_.key == present.key && next_.round_choice == present.round_choice;
      const double next_ms = same ? INFINITY : step_ms(next_, how.horizon);
      const double worse = next_ms - present_ms;
      if (worse > 0 && static_cast<double>(draw(1U << 31)) >= std::exp(-worse / temperature) * 0x1p31) {
        next_ = present;
        continue;
      }
      present = next_;
      present_ms = next_ms;
      if (present_ms < best.step_ms) best = {.cuts = cuts_of(present), .step_ms = present_ms};
    }
  }
}

bool RampSearch::mutate() {
  const int kind = static_cast<int>(draw(20));
  if (kind == 0) return move_fused_start();
  if (kind == 1) {
    const int choice = static_cast<int>(draw(num_round_choices_));
    return choice != std::exchange(next_.round_choice, choice);
  }
  return mutate_lengths(draw(2), kind);
}

bool RampSearch::mutate_lengths(std::size_t side, int kind) {
  const std::vector<int>& lengths = next_.lengths[side];
  const std::size_t num_stages = lengths.size();
  if (num_stages == 0) return false;
  const std::size_t a = draw(num_stages), b = draw(num_stages);
  const int of_a = lengths[a], of_b = lengths[b];
  if (kind < 10) {  // stage b gets a layer of stage a
    if (a == b || of_a < 2 || of_a == of_b + 1) return false;
    set_length(side, a, of_a - 1);
    set_length(side, b, of_b + 1);
    return true;
  }
  if (kind < 13) {  // split one stage into two
    if (of_a < 2) return false;
    const int part = 1 + static_cast<int>(draw(static_cast<std::size_t>(of_a) - 1));
    set_length(side, a, part);
    set_length(side, num_stages, of_a - part);
    return true;
  }
  if (kind < 16) {  // join two stages
    if (a == b) return false;
    set_length(side, b, of_a + of_b);
    set_length(side, a, 0);
    return true;
  }
  const auto alike = static_cast<int>(std::count(lengths.begin(), lengths.end(), of_b));
  if (kind < 18) {  // distribute the layers of stage a, one to each of several stages of equal length
    if (of_a == of_b || alike < of_a) return false;
    int left = of_a;
    for (std::size_t stage = 0; left > 0; ++stage) {
      if (lengths[stage] != of_b) continue;
      set_length(side, stage, of_b + 1);
      --left;
    }
    set_length(side, a, 0);
    return true;
  }
  if (of_b < 2) return false;  // make a stage of layers taken from stages of equal length, one from each
  const int num_layers = 1 + static_cast<int>(draw(alike));
  int left = num_layers;
  for (std::size_t stage = 0; left > 0; ++stage) {
    if (lengths[stage] != of_b) continue;
    set_length(side, stage, of_b - 1);
    --left;
  }
  set_length(side, num_stages, num_layers);
  return true;
}

bool RampSearch::move_fused_start() {
  int present = 0;
  for (const int length : next_.lengths[0]) present += length;
  const auto num_starts = static_cast<std::size_t>(cost_.num_layers() - least_fused_start_);
  const int start = least_fused_start_ + static_cast<int>(draw(num_starts));
  for (const std::size_t side : {0U, 1U}) {
    const std::vector<int>& lengths = next_.lengths[side];
    int more = start - present;
    if (more > 0) {
      const std::size_t stage = lengths.empty() ? 0 : draw(lengths.size());
      set_length(side, stage, (lengths.empty() ? 0 : lengths[stage]) + more);
    }
    while (more < 0) {
      const std::size_t stage = draw(lengths.size());
      const int less = std::min(lengths[stage], -more);
      set_length(side, stage, lengths[stage] - less);
      more += less;
    }
  }
  return start != present;
}

}  // namespace rp
