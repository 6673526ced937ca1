#include "planner/timeline/run_timeline.h"

#include <algorithm>

#include "common/check.h"
#include "common/text.h"
#include "planner/timeline/memory_strip.h"

namespace rp {

namespace {

// Returns the stages in the order of a round's slots.
std::vector<LayerRange> stages_of(const Plan& plan, int num_layers) {
  std::vector<LayerRange> stages = plan.forward;
  stages.push_back({plan.fused_start, num_layers});
  stages.insert(stages.end(), plan.backward.begin(), plan.backward.end());
  return stages;
}

TimelinePhase phase_of(const RunSpan& span) {
  if (span.kind == SpanKind::kUpdate) return TimelinePhase::kUpdate;
  if (is_sent(span.kind) || is_received(span.kind)) {
    const bool is_gradient = span.kind == SpanKind::kSendGradient || span.kind == SpanKind::kReceiveGradient;
    return is_gradient ? TimelinePhase::kBackward : TimelinePhase::kUpdate;
  }
  if (span.kind == SpanKind::kRecompute) return TimelinePhase::kRecompute;
  return span.phase == TaskKind::kForward ? TimelinePhase::kForward
         : span.phase == TaskKind::kFused ? TimelinePhase::kFused
                                          : TimelinePhase::kBackward;
}

std::string bytes_of(const RunSpan& span) { return bytes_text(static_cast<std::uint64_t>(span.bytes)); }

std::string what_of(const RunSpan& span, const std::vector<LayerRange>& stages) {
  const LayerRange& layers = stages[span.stage];
  const std::string of_stage = cat("layers ", layers.first, "-", layers.end - 1);
  const std::string of_microbatch = cat(", microbatch ", span.microbatch);
  switch (span.kind) {
    case SpanKind::kRecompute: return cat("recompute of ", of_stage, of_microbatch);
    case SpanKind::kCompute:
      return cat(span.phase == TaskKind::kForward ? "forward of "
                 : span.phase == TaskKind::kFused ? "fused "
                                                  : "backward of ",
                 of_stage, of_microbatch);
    case SpanKind::kUploadInput: return cat("input of ", of_stage, of_microbatch, ", ", bytes_of(span));
    case SpanKind::kUploadWeights: return cat("weights of layer ", span.layer, ", ", bytes_of(span));
    case SpanKind::kDownloadOutput: return cat("output of ", of_stage, of_microbatch, ", ", bytes_of(span));
    case SpanKind::kDownloadGradient: return cat("gradient of layer ", span.layer, ", ", bytes_of(span));
    case SpanKind::kUpdate: return cat("update of layer ", span.layer, ", ", bytes_of(span), " of host memory");
    case SpanKind::kSendGradient: return cat("gradient of layer ", span.layer, " to its owners, ", bytes_of(span));
    case SpanKind::kReceiveGradient:
      return cat("gradients of layer ", span.layer, " from other nodes, ", bytes_of(span));
    case SpanKind::kSendWeights: return cat("new weights of layer ", span.layer, " to other nodes, ", bytes_of(span));
    case SpanKind::kReceiveWeights:
      return cat("new weights of layer ", span.layer, " from their owners, ", bytes_of(span));
  }
  return "";
}

std::vector<TimelineSpan>& lane_of(TimelineRow& row, SpanKind kind) {
  switch (kind) {
    case SpanKind::kRecompute:
    case SpanKind::kCompute:
    case SpanKind::kUpdate:
    case SpanKind::kSendGradient:
    case SpanKind::kReceiveGradient:
    case SpanKind::kSendWeights:
    case SpanKind::kReceiveWeights: return row.compute;
    case SpanKind::kUploadInput: return row.upload_inputs;
    case SpanKind::kUploadWeights: return row.upload_weights;
    case SpanKind::kDownloadOutput:
    case SpanKind::kDownloadGradient: return row.download;
  }
  RP_ASSERT(false);
}

}  // namespace

TimelineSection run_section(const RunResult& run, const Plan& plan, int num_layers, int num_gpus, int warm_up,
                            int steps) {
  RP_ASSERT(static_cast<int>(run.step_ends.size()) >= warm_up + steps);
  TimelineSection section{.title = "Steps with their copies"};
  section.caption =
      cat("Layer 0 is the embedding, layer ", num_layers - 1,
          " the head. Below each GPU: inputs and weights on their way to it, outputs and gradients on their way back.");
  const double first = warm_up == 0 ? 0 : run.step_ends[static_cast<std::size_t>(warm_up) - 1];
  section.first_ms = section.axis_ms = first;
  section.length_ms = run.step_ends[static_cast<std::size_t>(warm_up + steps) - 1] - first;
  const std::vector<LayerRange> stages = stages_of(plan, num_layers);
  for (int gpu = 0; gpu < num_gpus; ++gpu) section.rows.push_back({.name = cat("GPU ", gpu)});
  const std::size_t updates = section.rows.size();
  for (const char* name : {"updates", "network out", "network in"}) section.rows.push_back({.name = name});
  if (run.sent_bytes + run.received_bytes == 0) section.rows.resize(updates + 1);
  for (const RunSpan& span : run.spans) {
    if (span.end <= first || span.start >= first + section.length_ms) continue;
    TimelineRow& row = section.rows[span.gpu >= 0 ? static_cast<std::size_t>(span.gpu)
                                                  : updates + (is_sent(span.kind)       ? 1
                                                               : is_received(span.kind) ? 2
                                                                                        : 0)];
    TimelineSpan drawn{.start_ms = span.start,
                       .end_ms = span.end,
                       .phase = phase_of(span),
                       .microbatch = span.microbatch,
                       .step = span.step};
    if (span.kind == SpanKind::kCompute) drawn.text = std::to_string(span.microbatch);
    drawn.hover = what_of(span, stages);
    lane_of(row, span.kind).push_back(std::move(drawn));
  }
  for (TimelineRow& row : section.rows) {
    for (auto* lane : {&row.compute, &row.upload_inputs, &row.upload_weights, &row.download}) {
      std::stable_sort(lane->begin(), lane->end(),
                       [](const TimelineSpan& a, const TimelineSpan& b) { return a.start_ms < b.start_ms; });
    }
  }
  std::vector<MemorySample> gpu, host;
  if (const GpuMemorySample* peak = run.peak_of(0)) {
    for (const GpuMemorySample& sample : run.gpu_memory.front())
      gpu.push_back({sample.time, static_cast<double>(sample.bytes.total())});
    section.strips.push_back(memory_strip("GPU 0 memory", gpu, static_cast<double>(peak->bytes.total())));
  }
  for (const HostMemorySample& sample : run.memory) host.push_back({sample.time, sample.activation_bytes});
  section.strips.push_back(memory_strip("host activations", host, run.peak_activation_bytes));
  return section;
}

}  // namespace rp
