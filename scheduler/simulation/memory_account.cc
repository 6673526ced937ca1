#include "scheduler/simulation/memory_account.h"

#include <algorithm>
#include <cmath>

namespace rp {

namespace {

std::uint64_t whole(double bytes) { return static_cast<std::uint64_t>(std::llround(bytes)); }

}  // namespace

MemoryAccount::MemoryAccount(const RunWork& work, const std::vector<RunStage>& stages, bool records)
    : stages_(stages), layers_(work.layers), records_(records && !work.layers.empty()) {
  if (!records_) return;
  gpus_.resize(work.workload.num_gpus);
  for (const RunStage& stage : stages) {
    Inside& inside = inside_.emplace_back();
    double forward = 0, backward = 0;
    const bool is_by_layer = stage.is_backward() && work.workload.recompute == RecomputeGrain::kLayer;
    for (int i = stage.work.layers.first; i < stage.work.layers.end; ++i) {
      const LayerBytes& layer = layers_[i];
      inside.weights += whole(layer.weights);
      inside.expanded += whole(layer.expanded);
      forward = std::max(forward, layer.forward_workspace);
      if (stage.work.kind == TaskKind::kForward) continue;
      backward = std::max(backward, layer.backward_workspace);
      inside.accumulators += whole(layer.accumulator);
      inside.saved = is_by_layer ? std::max(inside.saved, whole(layer.saved)) : inside.saved + whole(layer.saved);
    }
    inside.forward_workspace = whole(forward);
    inside.workspace = whole(stage.is_backward() ? backward : std::max(forward, backward));
  }
}

void MemoryAccount::begin_compute(double now, int gpu, int stage, bool is_recompute, bool starts_task) {
  if (!records_) return;
  const Inside& inside = inside_[stage];
  const RunStage& what = stages_[stage];
  const bool begins = is_recompute || !what.is_backward();
  if (begins && starts_task) take(gpu, now, &GpuMemory::accumulators, inside.accumulators);
  if (begins && starts_task) take(gpu, now, &GpuMemory::expanded, inside.expanded);
  if (begins) take(gpu, now, &GpuMemory::saved, inside.saved);
  take(gpu, now, &GpuMemory::workspace, is_recompute ? inside.forward_workspace : inside.workspace);
  if (!is_recompute) take(gpu, now, &GpuMemory::outputs, whole(what.output_bytes));
}

void MemoryAccount::end_compute(double now, int gpu, int stage, bool is_recompute, bool ends_task) {
  if (!records_) return;
  const Inside& inside = inside_[stage];
  const RunStage& what = stages_[stage];
  give_back(gpu, now, &GpuMemory::workspace, is_recompute ? inside.forward_workspace : inside.workspace);
  if (is_recompute) return;
  give_back(gpu, now, &GpuMemory::saved, inside.saved);
  for (const StageRead& read : what.reads) give_back(gpu, now, &GpuMemory::inputs, whole(read.bytes));
  if (!ends_task) return;
  give_back(gpu, now, &GpuMemory::weights, inside.weights);
  give_back(gpu, now, &GpuMemory::accumulators, inside.accumulators);
  give_back(gpu, now, &GpuMemory::expanded, inside.expanded);
  for (const int layer : what.trained_layers) take(gpu, now, &GpuMemory::gradients, whole(layers_[layer].gradient));
}

void MemoryAccount::end_copy(double now, const SimulatedLinks::End& end, int stage) {
  if (!records_) return;
  const SimulatedCopy& copy = end.copy.copy;
  const RunStage& what = stages_[stage];
  Gpu& gpu = gpus_[end.gpu];
  switch (copy.kind) {
    case CopyKind::kInput: take(end.gpu, end.copy.start, &GpuMemory::inputs, whole(what.reads[copy.read].bytes)); break;
    case CopyKind::kWeights:
      if (copy.slot == gpu.slot && copy.layer == gpu.layer) break;
      gpu.slot = copy.slot;
      gpu.layer = copy.layer;
      take(end.gpu, end.copy.start, &GpuMemory::weights, whole(layers_[copy.layer].weights));
      break;
    case CopyKind::kOutput: give_back(end.gpu, now, &GpuMemory::outputs, whole(what.output_bytes)); break;
    case CopyKind::kGradient:
      if (end.copy.has_ended) give_back(end.gpu, now, &GpuMemory::gradients, whole(layers_[copy.layer].gradient));
      break;
  }
}

std::vector<std::vector<GpuMemorySample>> MemoryAccount::samples() const {
  std::vector<std::vector<GpuMemorySample>> result;
  for (const Gpu& gpu : gpus_) {
    std::vector<Change> changes = gpu.changes;
    // The beginning of a copy is recorded only at its end, so the changes are sorted by time.
    // Changes of the same time keep the order in which they were recorded, so nothing is taken
    // before the memory for it was given back.
    std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.time < b.time; });
    std::vector<GpuMemorySample>& samples = result.emplace_back();
    GpuMemory bytes;
    for (const Change& change : changes) {
      bytes.*change.item += static_cast<std::uint64_t>(change.bytes);  // negative changes wrap around
      if (!samples.empty() && samples.back().time == change.time) {
        samples.back().bytes = bytes;
      } else {
        samples.push_back({.time = change.time, .bytes = bytes});
      }
    }
  }
  return result;
}

void MemoryAccount::take(int gpu, double time, std::uint64_t GpuMemory::*item, std::uint64_t bytes) {
  if (bytes > 0) gpus_[gpu].changes.push_back({time, item, static_cast<std::int64_t>(bytes)});
}

void MemoryAccount::give_back(int gpu, double time, std::uint64_t GpuMemory::*item, std::uint64_t bytes) {
  if (bytes > 0) gpus_[gpu].changes.push_back({time, item, -static_cast<std::int64_t>(bytes)});
}

}  // namespace rp
