#include "scheduler/gpu_memory.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "common/run_depth.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

constexpr std::uint64_t kAccumulatorBytes = 4;  // fp32
constexpr int kForwardPerBackward = 3;

using Costs = std::vector<LayerCost>;

bool within(const GpuMemory& memory, const GpuMemory& budget) {
  return largest(memory, budget).total() == budget.total();
}

// Computes sums over neighbouring layers.
class RangeSums {
 public:
  RangeSums(const Costs& costs, std::uint64_t LayerCost::*item) : totals_(1) {
    for (const LayerCost& cost : costs) totals_.push_back(totals_.back() + cost.*item);
  }
  [[nodiscard]] std::uint64_t of(LayerRange range) const { return totals_[range.end] - totals_[range.first]; }

 private:
  std::vector<std::uint64_t> totals_;
};

class RangeMaxima {
 public:
  RangeMaxima(const Costs& costs, std::uint64_t LayerCost::*item) : levels_(1) {
    for (const LayerCost& cost : costs) levels_[0].push_back(cost.*item);
    for (std::size_t half = 1; 2 * half <= costs.size(); half *= 2) {
      std::vector<std::uint64_t> level;
      for (std::size_t i = 0; i + 2 * half <= costs.size(); ++i)
        level.push_back(std::max(levels_.back()[i], levels_.back()[i + half]));
      levels_.push_back(std::move(level));
    }
  }
  // REQUIRES: the range is not empty.
  [[nodiscard]] std::uint64_t of(LayerRange range) const {
    const auto length = static_cast<std::size_t>(range.end - range.first);
    const auto level = static_cast<std::size_t>(std::bit_width(length)) - 1;
    const std::vector<std::uint64_t>& maxima = levels_[level];
    return std::max(maxima[range.first], maxima[static_cast<std::size_t>(range.end) - (std::size_t{1} << level)]);
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  // element i: maxima of 2^i layers, by the first one
};

// Computes stage_memory() in a time that does not depend on the stage's length.
class StageMemories {
 public:
  StageMemories(const Costs& costs, RecomputeGrain recompute) : costs_(costs), recompute_(recompute) {}

  [[nodiscard]] GpuMemory of(LayerRange layers, Phase phase) const {
    const bool has_backward = phase != Phase::kForward;
    const bool by_layer = phase == Phase::kBackward && recompute_ == RecomputeGrain::kLayer;
    const LayerCost& first = costs_[layers.first];
    const LayerCost& last = costs_[layers.end - 1];
    GpuMemory memory;
    memory.weights = kStageBuffers * weights_.of(layers);
    memory.expanded = expanded_.of(layers);
    memory.workspace = forward_workspaces_.of(layers);
    memory.inputs = kInputPlaces * (by_layer ? inputs_.of(layers) : first.input_bytes);
    if (has_backward) {
      memory.workspace = std::max(memory.workspace, backward_workspaces_.of(layers));
      memory.accumulators = kAccumulatorBytes * gradient_elements_.of(layers);
      memory.gradients = kGradientBuffers * gradients_.of(layers);
      memory.saved = by_layer ? largest_saved_.of(layers) : saved_.of(layers);
    }
    if (phase == Phase::kBackward) memory.inputs += kInputPlaces * last.output_bytes;
    const std::uint64_t activations = recompute_ == RecomputeGrain::kLayer ? outputs_.of(layers) : last.output_bytes;
    memory.outputs = kOutputPlaces * (has_backward ? first.input_bytes : activations);
    return memory;
  }

 private:
  const Costs& costs_;
  const RecomputeGrain recompute_;
  const RangeSums weights_{costs_, &LayerCost::weight_bytes}, expanded_{costs_, &LayerCost::expanded_bytes},
      inputs_{costs_, &LayerCost::input_bytes}, outputs_{costs_, &LayerCost::output_bytes},
      gradient_elements_{costs_, &LayerCost::gradient_elements}, gradients_{costs_, &LayerCost::gradient_bytes},
      saved_{costs_, &LayerCost::saved_bytes};
  const RangeMaxima forward_workspaces_{costs_, &LayerCost::forward_workspace_bytes},
      backward_workspaces_{costs_, &LayerCost::backward_workspace_bytes},
      largest_saved_{costs_, &LayerCost::saved_bytes};
};

// The maximum numbers of layers of stages; for the fused stage, without the head.
struct Lengths {
  int forward = 1, backward = 1, fused = 0;
};

// Finds a budget for each kind of buffer, and the longest stages that keep to the budgets.
class LimitSearch {
 public:
  LimitSearch(const Costs& costs, double capacity, RecomputeGrain recompute, int max_fused_layers, PlanKind kind,
              const GpuMemory& beside)
      : costs_(costs),
        capacity_(capacity),
        stages_(costs, recompute),
        kind_(kind),
        beside_(beside),
        num_body_layers_(static_cast<int>(costs.size()) - (kind == PlanKind::kFused ? 1 : 0)),
        max_fused_(kind == PlanKind::kFused ? std::min(max_fused_layers, num_body_layers_) : 0) {}

  StageLimits search() {
    Lengths lengths;
    if (!fits(lengths)) throw too_large();
    for (bool has_grown = true; has_grown;) {
      has_grown = false;
      for (int Lengths::*kind : {&Lengths::backward, &Lengths::forward, &Lengths::fused}) {
        Lengths longer = lengths;
        ++(longer.*kind);
        // Forward stages that take as long as backward stages have three times as many layers.
        const int longest_forward = kind_ == PlanKind::kInfer
                                        ? num_body_layers_
                                        : std::min(num_body_layers_, kForwardPerBackward * longer.backward);
        const int longest_backward = kind_ == PlanKind::kInfer ? 1 : num_body_layers_;
        if (longer.forward > longest_forward || longer.backward > longest_backward || longer.fused > max_fused_ ||
            !fits(longer)) {
          continue;
        }
        lengths = longer;
        has_grown = true;
      }
    }
    const GpuMemory budget = budget_of(lengths);
    StageLimits limits{.forward = ends(Phase::kForward, budget), .backward = ends(Phase::kBackward, budget)};
    limits.least_fused_start = num_body_layers_;
    while (num_body_layers_ - limits.least_fused_start < max_fused_ &&
           within(stage(limits.least_fused_start - 1, num_body_layers_ + 1, Phase::kFused), budget)) {
      --limits.least_fused_start;
    }
    return limits;
  }

 private:
  [[nodiscard]] GpuMemory stage(int first, int end, Phase phase) const { return stages_.of({first, end}, phase); }

  // Returns what any plan needs at most whose stages have no more than these lengths.
  [[nodiscard]] GpuMemory budget_of(const Lengths& lengths) const {
    GpuMemory budget = beside_;
    if (kind_ == PlanKind::kFused)
      budget = largest(budget, stage(num_body_layers_ - lengths.fused, num_body_layers_ + 1, Phase::kFused));
    for (int first = 0; first < num_body_layers_; ++first) {
      budget = largest(budget, stage(first, std::min(first + lengths.forward, num_body_layers_), Phase::kForward));
      if (kind_ == PlanKind::kInfer) continue;
      budget = largest(budget, stage(first, std::min(first + lengths.backward, num_body_layers_), Phase::kBackward));
    }
    return budget;
  }

  [[nodiscard]] bool fits(const Lengths& lengths) const {
    return static_cast<double>(budget_of(lengths).total()) <= capacity_;
  }

  // Returns the largest end of a stage within the budget, by the stage's first layer. The last
  // entry (of the head, or after the last layer) has no meaning.
  [[nodiscard]] std::vector<int> ends(Phase phase, const GpuMemory& budget) const {
    std::vector<int> result;
    for (int first = 0; first < num_body_layers_; ++first) {
      int end = first + 1;
      while (end < num_body_layers_ && within(stage(first, end + 1, phase), budget)) ++end;
      result.push_back(end);
    }
    result.push_back(num_body_layers_ + 1);
    return result;
  }

  [[nodiscard]] Error too_large() const {
    const int head = static_cast<int>(costs_.size()) - 1;
    int worst = head;
    GpuMemory most = stage(head, head + 1, Phase::kFused);
    for (int layer = 0; layer < num_body_layers_; ++layer) {
      const GpuMemory memory = stage(layer, layer + 1, kind_ == PlanKind::kInfer ? Phase::kForward : Phase::kBackward);
      if (memory.total() <= most.total()) continue;
      worst = layer;
      most = memory;
    }
    const GpuMemory all = budget_of({});
    return Error(
        ExitCode::kNoResource,
        cat("stages of one layer each do not fit the GPU: ", bytes_text(all.total()), " are needed (", memory_text(all),
            "), ", bytes_text(static_cast<std::uint64_t>(capacity_)), " are usable. The largest is layer ", worst,
            worst == head ? " (the head)"
            : worst == 0  ? " (the embedding)"
                          : "",
            ", ", bytes_text(most.total()),
            " by itself. Fewer sequences in a microbatch, shorter sequences, LoRA, or a GPU with more memory would "
            "help"));
  }

  const Costs& costs_;
  const double capacity_;
  const StageMemories stages_;
  const PlanKind kind_;
  const GpuMemory beside_;
  const int num_body_layers_;  // layers in forward and backward stages
  const int max_fused_;
};

}  // namespace

GpuMemory largest(const GpuMemory& a, const GpuMemory& b) {
  const auto pool = [](const GpuMemory& memory) { return memory.saved + memory.workspace + memory.expanded; };
  const GpuMemory& inside = pool(a) >= pool(b) ? a : b;
  return {.weights = std::max(a.weights, b.weights),
          .accumulators = std::max(a.accumulators, b.accumulators),
          .gradients = std::max(a.gradients, b.gradients),
          .inputs = std::max(a.inputs, b.inputs),
          .outputs = std::max(a.outputs, b.outputs),
          .saved = inside.saved,
          .workspace = inside.workspace,
          .expanded = inside.expanded};
}

std::string memory_text(const GpuMemory& memory) {
  return cat("weights of two stages ", bytes_text(memory.weights), ", fp32 gradients ", bytes_text(memory.accumulators),
             ", rounded gradients ", bytes_text(memory.gradients), ", inputs and outputs ",
             bytes_text(memory.inputs + memory.outputs), ", saved activations ", bytes_text(memory.saved),
             ", workspace ", bytes_text(memory.workspace),
             memory.expanded > 0 ? cat(", expanded weights ", bytes_text(memory.expanded)) : "");
}

GpuMemory stage_memory(const Costs& costs, LayerRange layers, Phase phase, RecomputeGrain recompute) {
  GpuMemory memory;
  const bool has_backward = phase != Phase::kForward;
  const bool by_layer = phase == Phase::kBackward && recompute == RecomputeGrain::kLayer;
  std::uint64_t saved_boundaries = 0;
  for (int i = layers.first; i < layers.end; ++i) {
    const LayerCost& cost = costs[i];
    saved_boundaries += cost.output_bytes;
    memory.weights += kStageBuffers * cost.weight_bytes;
    memory.expanded += cost.expanded_bytes;
    memory.workspace = std::max(memory.workspace, cost.forward_workspace_bytes);
    if (by_layer) memory.inputs += kInputPlaces * cost.input_bytes;
    if (!has_backward) continue;
    memory.workspace = std::max(memory.workspace, cost.backward_workspace_bytes);
    memory.accumulators += kAccumulatorBytes * cost.gradient_elements;
    memory.gradients += kGradientBuffers * cost.gradient_bytes;
    memory.saved = by_layer ? std::max(memory.saved, cost.saved_bytes) : memory.saved + cost.saved_bytes;
  }
  const LayerCost& first = costs[layers.first];
  const LayerCost& last = costs[layers.end - 1];
  if (!by_layer) memory.inputs += kInputPlaces * first.input_bytes;
  if (phase == Phase::kBackward) memory.inputs += kInputPlaces * last.output_bytes;  // the incoming gradient
  // The outputs of a microbatch. Backward and fused stages: the gradient of the input. Forward
  // stages: the activation at the end, or with recompute by layer the activations of all layers.
  const std::uint64_t activations = recompute == RecomputeGrain::kLayer ? saved_boundaries : last.output_bytes;
  memory.outputs = kOutputPlaces * (has_backward ? first.input_bytes : activations);
  return memory;
}

GpuMemory gpu_memory(const Costs& costs, const Plan& plan, RecomputeGrain recompute) {
  GpuMemory memory;
  for (const PlanStage& stage : stages_of(plan, static_cast<int>(costs.size()), /*first_trained_layer=*/0)) {
    memory = largest(memory, stage_memory(costs, stage.layers, stage.phase, recompute));
  }
  return memory;
}

std::optional<std::string> too_large_text(const Costs& costs, const Plan& plan, std::uint64_t capacity_bytes,
                                          RecomputeGrain recompute) {
  const GpuMemory memory = gpu_memory(costs, plan, recompute);
  if (memory.total() <= capacity_bytes) return std::nullopt;
  return cat("the plan does not fit the GPUs: its stages need ", bytes_text(memory.total()), " at least (",
             memory_text(memory), "), and a worker has ", bytes_text(capacity_bytes),
             "; give a plan of shorter stages, or none");
}

StageLimits stage_limits(const Costs& costs, double capacity_bytes, RecomputeGrain recompute, int max_fused_layers,
                         PlanKind kind, const GpuMemory& beside) {
  return LimitSearch(costs, capacity_bytes, recompute, max_fused_layers, kind, beside).search();
}

GpuMemory memory_within(const Costs& costs, const StageLimits& limits, RecomputeGrain recompute, PlanKind kind) {
  GpuMemory memory;
  const auto add = [&](int first, int end, Phase of) {
    memory = largest(memory, stage_memory(costs, {first, end}, of, recompute));
  };
  const int num_layers = static_cast<int>(costs.size());
  const int num_body_layers = num_layers - (kind == PlanKind::kFused ? 1 : 0);
  if (kind == PlanKind::kFused) add(limits.least_fused_start, num_layers, Phase::kFused);
  for (int first = 0; first < num_body_layers; ++first) {
    const auto at = static_cast<std::size_t>(first);
    add(first, limits.forward[at], Phase::kForward);
    if (kind != PlanKind::kInfer) add(first, limits.backward[at], Phase::kBackward);
  }
  return memory;
}

bool is_held(const Plan& plan, const StageLimits& limits, const StageLimits& wider) {
  const auto is_held_at = [](const std::vector<LayerRange>& stages, const std::vector<int>& ends,
                             const std::vector<int>& wider_ends) {
    return std::any_of(stages.begin(), stages.end(), [&](const LayerRange& stage) {
      const auto first = static_cast<std::size_t>(stage.first);
      return stage.end == ends[first] && wider_ends[first] > stage.end;
    });
  };
  return is_held_at(plan.forward, limits.forward, wider.forward) ||
         is_held_at(plan.backward, limits.backward, wider.backward) ||
         (plan.fused_start == limits.least_fused_start && wider.least_fused_start < plan.fused_start);
}

}  // namespace rp
