#include "scheduler/partition.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "common/check.h"

namespace rp {

namespace {

// Sums of a cost over contiguous layers.
class Sums {
 public:
  explicit Sums(const std::vector<double>& costs) : totals_(1, 0.0) {
    for (const double cost : costs) totals_.push_back(totals_.back() + cost);
  }
  [[nodiscard]] double of(LayerRange range) const {
    return totals_[static_cast<std::size_t>(range.end)] - totals_[static_cast<std::size_t>(range.first)];
  }

 private:
  std::vector<double> totals_;
};

struct Workload {
  Sums forward;   // a forward stage
  Sums backward;  // a backward stage: recompute and backward
  Sums fused;     // forward and backward
  Sums bytes;
  double max_bytes;
  int num_layers;

  [[nodiscard]] bool fits(LayerRange range) const {
    return range.end - range.first == 1 || bytes.of(range) <= max_bytes;
  }
};

// As few ranges of at most `limit` as possible over [0, end), or nothing if a layer alone is longer.
std::optional<std::vector<LayerRange>> pack(const Workload& load, const Sums& cost, int end, double limit) {
  std::vector<LayerRange> ranges;
  int first = 0;
  for (int layer = 0; layer < end; ++layer) {
    if (cost.of({layer, layer + 1}) > limit) return std::nullopt;
    if (layer > first && (cost.of({first, layer + 1}) > limit || !load.fits({first, layer + 1}))) {
      ranges.push_back({first, layer});
      first = layer;
    }
  }
  if (end > first) ranges.push_back({first, end});
  return ranges;
}

// `num` ranges over [0, end) whose largest cost is as small as possible.
std::vector<LayerRange> spread(const Workload& load, const Sums& cost, int end, std::size_t num) {
  double low = 0;
  double high = cost.of({0, end});
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const auto ranges = pack(load, cost, end, middle);
    (ranges && ranges->size() <= num ? high : low) = middle;
  }
  auto ranges = pack(load, cost, end, high);
  RP_ASSERT(ranges.has_value());
  return *ranges;
}

std::vector<double> candidates(const Workload& load) {
  std::vector<double> limits;
  for (int first = 0; first < load.num_layers; ++first) {
    for (int end = first + 1; end <= load.num_layers; ++end) {
      limits.push_back(load.forward.of({first, end}));
      limits.push_back(load.backward.of({first, end}));
    }
  }
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  // Every plan of thousands of sums differs little from its neighbours.
  constexpr std::size_t kMost = 400;
  if (limits.size() > kMost) {
    std::vector<double> fewer;
    for (std::size_t i = 0; i < kMost; ++i) fewer.push_back(limits[(limits.size() - 1) * i / (kMost - 1)]);
    limits = fewer;
  }
  return limits;
}

// The first layer of the longest fused stage within the limit, or nothing if the last layer alone is longer.
std::optional<int> fused_start(const Workload& load, double limit) {
  int start = load.num_layers;
  while (start > 0 && load.fused.of({start - 1, load.num_layers}) <= limit && load.fits({start - 1, load.num_layers})) {
    --start;
  }
  return start == load.num_layers ? std::nullopt : std::optional(start);
}

}  // namespace

Plan balanced_plan(const std::vector<LayerCost>& layers, int num_workers, std::uint64_t max_stage_bytes) {
  std::vector<double> forward, backward, bytes;
  for (const LayerCost& layer : layers) {
    forward.push_back(layer.forward);
    backward.push_back(layer.forward + layer.backward);
    bytes.push_back(static_cast<double>(layer.bytes));
  }
  const Workload load{Sums(forward), Sums(backward), Sums(backward), Sums(bytes), static_cast<double>(max_stage_bytes),
                      static_cast<int>(layers.size())};
  double best_cost = std::numeric_limits<double>::infinity();
  Plan best{.forward = {}, .fused_start = load.num_layers - 1, .backward = {}};
  for (const double limit : candidates(load)) {
    const auto start = fused_start(load, limit);
    if (!start) continue;
    const auto forward_stages = pack(load, load.forward, *start, limit);
    const auto backward_stages = pack(load, load.backward, *start, limit);
    if (!forward_stages || !backward_stages) continue;
    const int num_stages = static_cast<int>(forward_stages->size() + backward_stages->size() + 1);
    const double cost = std::max(num_stages, num_workers) * limit;
    if (cost < best_cost) {
      best_cost = cost;
      best = {*forward_stages, *start, *backward_stages};
    }
  }
  if (best_cost == std::numeric_limits<double>::infinity()) {  // nothing fits the memory: as little at once as possible
    best.forward = spread(load, load.forward, best.fused_start, static_cast<std::size_t>(load.num_layers));
    best.backward = best.forward;
  } else {
    best.forward = spread(load, load.forward, best.fused_start, best.forward.size());
    best.backward = spread(load, load.backward, best.fused_start, best.backward.size());
  }
  std::reverse(best.backward.begin(), best.backward.end());
  validate_plan(best, load.num_layers);
  return best;
}

void LayerTimes::add(const std::vector<std::int64_t>& forward_ns, const std::vector<std::int64_t>& backward_ns) {
  constexpr double kSmoothing = 0.9;
  ++num_records_;
  for (std::size_t i = 0; i < times_.size(); ++i) {
    const auto mix = [this](double& value, std::int64_t record) {
      value = num_records_ <= 2 ? static_cast<double>(record)
                                : kSmoothing * value + (1 - kSmoothing) * static_cast<double>(record);
    };
    mix(times_[i].forward, forward_ns[i]);
    mix(times_[i].backward, backward_ns[i]);
  }
}

}  // namespace rp
