#include "scheduler/partition.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "common/check.h"

namespace rp {

namespace {

// Computes sums of a cost over contiguous layers.
class Sums {
 public:
  explicit Sums(const std::vector<double>& costs) : totals_(1, 0.0) {
    for (const double cost : costs) totals_.push_back(totals_.back() + cost);
  }
  [[nodiscard]] double of(LayerRange range) const { return totals_[range.end] - totals_[range.first]; }

 private:
  std::vector<double> totals_;
};

struct Load {
  explicit Load(const PlanRequest& request);

  PlanKind kind;
  Sums forward;   // the time of a forward stage
  Sums backward;  // the time of a backward stage: recompute and backward
  Sums fused;     // the time of the fused stage: forward and backward
  Sums bytes;
  double max_bytes;
  StageLimits limits;
  int num_layers;

  // `ends`: StageLimits::forward or backward.
  [[nodiscard]] bool fits(LayerRange range, const std::vector<int>& ends) const {
    if (range.end - range.first == 1) return true;
    return bytes.of(range) <= max_bytes && (ends.empty() || range.end <= ends[range.first]);
  }
  [[nodiscard]] bool fits_fused(int start) const {
    return num_layers - start == 1 || (bytes.of({start, num_layers}) <= max_bytes && start >= limits.least_fused_start);
  }
};

// Returns as few ranges of at most `limit` as possible over [0, end), or nothing if a single layer
// exceeds the limit.
std::optional<std::vector<LayerRange>> pack(const Load& load, const Sums& cost, const std::vector<int>& ends, int end,
                                            double limit) {
  std::vector<LayerRange> ranges;
  int first = 0;
  for (int layer = 0; layer < end; ++layer) {
    if (cost.of({layer, layer + 1}) > limit) return std::nullopt;
    if (layer > first && (cost.of({first, layer + 1}) > limit || !load.fits({first, layer + 1}, ends))) {
      ranges.push_back({first, layer});
      first = layer;
    }
  }
  if (end > first) ranges.push_back({first, end});
  return ranges;
}

// Returns at most `num` ranges over [0, end) whose largest cost is as small as possible.
std::vector<LayerRange> spread(const Load& load, const Sums& cost, const std::vector<int>& ends, int end,
                               std::size_t num) {
  double low = 0;
  double high = cost.of({0, end});
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const auto ranges = pack(load, cost, ends, end, middle);
    (ranges && ranges->size() <= num ? high : low) = middle;
  }
  auto ranges = pack(load, cost, ends, end, high);
  RP_ASSERT(ranges.has_value());
  return *ranges;
}

template <typename Cost>
Sums sums_of(const PlanRequest& request, Cost cost) {
  std::vector<double> costs;
  for (const PartitionLayer& layer : request.layers) costs.push_back(cost(layer));
  return Sums(costs);
}

Load::Load(const PlanRequest& request)
    : kind(request.kind),
      forward(sums_of(request, [](const PartitionLayer& layer) { return layer.forward; })),
      backward(sums_of(request, [](const PartitionLayer& layer) { return layer.recompute + layer.backward; })),
      fused(sums_of(request, [](const PartitionLayer& layer) { return layer.forward + layer.backward; })),
      bytes(sums_of(request, [](const PartitionLayer& layer) { return static_cast<double>(layer.bytes); })),
      max_bytes(static_cast<double>(request.max_stage_bytes)),
      limits(request.limits),
      num_layers(static_cast<int>(request.layers.size())) {}

std::vector<double> candidates(const std::vector<Load>& loads, double threshold) {
  std::vector<double> limits;
  double longest_layer = 0;
  for (const Load& load : loads) {
    for (int first = 0; first < load.num_layers; ++first) {
      longest_layer = std::max(longest_layer, load.forward.of({first, first + 1}));
      if (load.kind != PlanKind::kInfer) longest_layer = std::max(longest_layer, load.backward.of({first, first + 1}));
      for (int end = first + 1; end <= load.num_layers; ++end) {
        limits.push_back(load.forward.of({first, end}));
        if (load.kind != PlanKind::kInfer) limits.push_back(load.backward.of({first, end}));
      }
    }
    // The shortest fused stage is the last layer alone.
    if (load.kind == PlanKind::kFused) {
      limits.push_back(load.fused.of({load.num_layers - 1, load.num_layers}));
      longest_layer = std::max(longest_layer, limits.back());
    }
  }
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  if (threshold > 0) std::erase_if(limits, [&](double limit) { return limit > threshold * longest_layer; });
  // With thousands of sums, neighbouring ones lead to nearly the same plan.
  constexpr std::size_t kMax = 400;
  if (limits.size() > kMax) {
    std::vector<double> fewer;
    for (std::size_t i = 0; i < kMax; ++i) fewer.push_back(limits[(limits.size() - 1) * i / (kMax - 1)]);
    limits = fewer;
  }
  return limits;
}

// Returns the first layer of the longest fused stage within the limit, or nothing if the last layer
// alone exceeds it.
std::optional<int> fused_start(const Load& load, double limit) {
  int start = load.num_layers;
  while (start > 0 && load.fused.of({start - 1, load.num_layers}) <= limit && load.fits_fused(start - 1)) {
    --start;
  }
  return start == load.num_layers ? std::nullopt : std::optional(start);
}

// Returns the stages of one model under a limit, with backward stages in ascending order, or
// nothing if a single layer exceeds the limit.
std::optional<Plan> cut(const Load& load, double limit) {
  Plan plan{.forward = {}, .fused_start = load.num_layers, .backward = {}};
  if (load.kind == PlanKind::kFused) {
    const auto start = fused_start(load, limit);
    if (!start) return std::nullopt;
    plan.fused_start = *start;
  }
  const auto forward = pack(load, load.forward, load.limits.forward, plan.fused_start, limit);
  if (!forward) return std::nullopt;
  plan.forward = *forward;
  if (load.kind == PlanKind::kInfer) return plan;
  const auto backward = pack(load, load.backward, load.limits.backward, plan.fused_start, limit);
  if (!backward) return std::nullopt;
  plan.backward = *backward;
  return plan;
}

// Returns the plan with the shortest stages: one layer each.
Plan finest(const Load& load) {
  Plan plan{.forward = {}, .fused_start = load.num_layers - (load.kind == PlanKind::kFused ? 1 : 0), .backward = {}};
  for (int layer = 0; layer < plan.fused_start; ++layer) plan.forward.push_back({layer, layer + 1});
  if (load.kind != PlanKind::kInfer) plan.backward = plan.forward;
  return plan;
}

}  // namespace

std::vector<Plan> balanced_plans(const std::vector<PlanRequest>& models, int min_stages, double threshold) {
  const std::vector<Load> loads(models.begin(), models.end());
  double best_cost = std::numeric_limits<double>::infinity();
  std::vector<Plan> best;
  for (const double limit : candidates(loads, threshold)) {
    std::vector<Plan> plans;
    int num_stages = 0;
    for (const Load& load : loads) {
      std::optional<Plan> plan = cut(load, limit);
      if (!plan) break;
      num_stages += plan->num_stages(load.num_layers);
      plans.push_back(std::move(*plan));
    }
    const double cost = std::max(num_stages, min_stages) * limit;
    // Among plans of equal cost, the one with more stages is taken, since it fills the workers sooner.
    // One worker gains nothing by more cuts.
    if (plans.size() < loads.size() || (min_stages > 1 ? cost >= best_cost : cost > best_cost)) continue;
    best_cost = cost;
    best = std::move(plans);
  }
  if (best.empty()) {
    for (const Load& load : loads) best.push_back(finest(load));
  }
  for (std::size_t i = 0; i < loads.size(); ++i) {
    Plan& plan = best[i];
    const Load& load = loads[i];
    plan.forward = spread(load, load.forward, load.limits.forward, plan.fused_start, plan.forward.size());
    if (load.kind != PlanKind::kInfer) {
      plan.backward = spread(load, load.backward, load.limits.backward, plan.fused_start, plan.backward.size());
    }
    std::reverse(plan.backward.begin(), plan.backward.end());
    validate_plan(plan, loads[i].num_layers);
  }
  return best;
}

}  // namespace rp
