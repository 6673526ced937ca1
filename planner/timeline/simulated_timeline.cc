#include "planner/timeline/simulated_timeline.h"

#include <algorithm>

#include "common/check.h"
#include "common/text.h"

namespace rp {

namespace {

TimelinePhase phase_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kForward: return TimelinePhase::kForward;
    case TaskKind::kFused: return TimelinePhase::kFused;
    case TaskKind::kBackward:
    case TaskKind::kInputGradient: return TimelinePhase::kBackward;
    case TaskKind::kWeightGradient: return TimelinePhase::kWeightGradient;
  }
  RP_ASSERT(false);
}

const char* name_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kForward: return "forward";
    case TaskKind::kFused: return "fused";
    case TaskKind::kBackward: return "backward";
    case TaskKind::kInputGradient: return "input gradient";
    case TaskKind::kWeightGradient: return "weight gradient";
  }
  return "";
}

// Returns a text such as "layers 3-5 and head".
std::string layers_text(const LayerRange& layers, int num_layers) {
  const int end = std::min(layers.end, num_layers);
  if (layers.first >= end) return layers.end > num_layers ? "head" : "no layers";
  const std::string text =
      end - layers.first == 1 ? cat("layer ", layers.first) : cat("layers ", layers.first, "-", end - 1);
  return text + (layers.end > num_layers ? " and head" : "");
}

}  // namespace

double end_of_step(const TaskGraph& graph, const Timeline& timeline, int step) {
  double end = 0;
  for (std::size_t task = 0; task < graph.tasks.size(); ++task) {
    if (graph.tasks[task].step <= step) end = std::max(end, timeline.end[task]);
  }
  return end;
}

TimelineSection simulated_section(const TaskGraph& graph, const Timeline& timeline,
                                  const std::vector<LayerRange>& stages, int num_layers, double first_ms,
                                  double length_ms, bool several_steps) {
  TimelineSection section{.first_ms = first_ms, .length_ms = length_ms};
  for (const std::vector<int>& order : graph.order) {
    if (section.rows.size() == kMaxDrawnGpus) break;
    TimelineRow& row = section.rows.emplace_back();
    row.name = cat("GPU ", section.rows.size() - 1);
    for (const int number : order) {
      const auto index = static_cast<std::size_t>(number);
      if (timeline.end[index] <= first_ms || timeline.start[index] >= first_ms + length_ms) continue;
      const SimulatedTask& task = graph.tasks[index];
      const std::string step = several_steps ? cat(", step ", task.step) : "";
      row.compute.push_back({.start_ms = timeline.start[index],
                             .end_ms = timeline.end[index],
                             .phase = phase_of(task.kind),
                             .recompute_ms = task.recompute,
                             .microbatch = task.microbatch,
                             .step = several_steps ? task.step : -1,
                             .text = cat(task.microbatch),
                             .hover = cat(name_of(task.kind), ", ", layers_text(stages[task.stage], num_layers),
                                          ", microbatch ", task.microbatch, step)});
    }
  }
  return section;
}

}  // namespace rp
