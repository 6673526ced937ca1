#include "scheduler/simulation/schedule_memory.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "scheduler/simulation/run_stages.h"

namespace rp {

namespace {

// Collects changes of memory in any order.
class Changes {
 public:
  void add(double from, double to, double bytes) {
    if (bytes == 0) return;
    add(from, bytes);
    add(to, -bytes);
  }
  void add(double time, double bytes) { changes_.push_back({time, bytes}); }

  [[nodiscard]] std::vector<MemorySample> samples() && {
    // At the same time, memory is freed before it is taken.
    std::sort(changes_.begin(), changes_.end(), [](const MemorySample& a, const MemorySample& b) {
      return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
    });
    std::vector<MemorySample> samples;
    double bytes = 0;
    for (const MemorySample& change : changes_) {
      bytes += change.bytes;
      if (samples.empty() || samples.back().time != change.time) samples.push_back({.time = change.time});
      samples.back().bytes = bytes;
    }
    return samples;
  }

 private:
  std::vector<MemorySample> changes_;
};

// The needs of a stage that is bound to a GPU; all except the weights are for one microbatch.
struct BoundStage {
  double weights = 0;
  double kept = 0;   // from its forward to its backward
  double saved = 0;  // in addition, while its backward runs
};

BoundStage bound_stage(const LayerRange& range, const std::vector<LayerFootprint>& layers, bool splits_backward) {
  BoundStage stage;
  double largest = 0, sum = 0, head = 0;
  for (int i = range.first; i < range.end; ++i) {
    const LayerFootprint& layer = layers[i];
    stage.weights += layer.weights;
    stage.kept += layer.activation;
    if (i + 1 == static_cast<int>(layers.size())) {
      head = layer.saved;
      continue;
    }
    largest = std::max(largest, layer.saved);
    sum += layer.saved;
  }
  stage.kept += head;
  // The head's part is there already, and is freed before the layers are recomputed.
  stage.saved = splits_backward ? sum : std::max(largest, head) - head;
  return stage;
}

double of_layers(const LayerRange& range, const std::vector<LayerFootprint>& layers, double LayerFootprint::*item) {
  double sum = 0;
  for (int i = range.first; i < range.end; ++i) sum += layers[i].*item;
  return sum;
}

// Returns what one GPU holds under RoundPipe's schedule.
std::vector<MemorySample> round_gpu(const TaskGraph& graph, const Timeline& timeline, const std::vector<int>& order,
                                    int round_microbatches, const std::vector<RunStage>& stages,
                                    const std::vector<LayerFootprint>& layers) {
  Changes changes;
  double last_start = 0, free = 0;           // of the previous task: its beginning and its end
  double before_last_end = 0, last_end = 0;  // of the two previous slots
  for (const int number : order) {
    const SimulatedTask& task = graph.tasks[number];
    const RunStage& stage = stages[task.stage];
    // By rounding, a task that waits for nothing may begin slightly before `free`.
    const double start = std::max(timeline.start[number], free), end = timeline.end[number];
    const double made = task.input < 0 ? 0 : timeline.end[task.input];
    const double there = std::min(std::max(last_start, made), end);
    for (std::size_t read = 0; read < stage.reads.size(); ++read) {
      // The inputs of a recompute were produced in the forward pass, long ago.
      const bool is_of_recompute = stage.is_backward() && read < stage.num_inputs();
      changes.add(is_of_recompute ? last_start : there, end, stage.reads[read].bytes);
    }
    changes.add(start, end + graph.hop, stage.output_bytes);
    if (task.kind != TaskKind::kForward)
      changes.add(start, end, of_layers(stage.work.layers, layers, &LayerFootprint::saved));
    last_start = start;
    free = end;
    if (task.microbatch % round_microbatches + 1 < round_microbatches) continue;
    changes.add(before_last_end, end, of_layers(stage.work.layers, layers, &LayerFootprint::upload));
    before_last_end = std::exchange(last_end, end);
  }
  return std::move(changes).samples();
}

}  // namespace

double peak_bytes(const std::vector<MemorySample>& samples) {
  double peak = 0;
  for (const MemorySample& sample : samples) peak = std::max(peak, sample.bytes);
  return peak;
}

ScheduleMemory bound_memory(const TaskGraph& graph, const Timeline& timeline, const std::vector<LayerRange>& stages,
                            const std::vector<LayerFootprint>& layers) {
  const bool splits_backward = std::any_of(graph.tasks.begin(), graph.tasks.end(), [](const SimulatedTask& task) {
    return task.kind == TaskKind::kWeightGradient;
  });
  const std::size_t num_gpus = graph.order.size();
  std::vector<Changes> gpus(num_gpus);
  std::vector<BoundStage> needs;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    needs.push_back(bound_stage(stages[stage], layers, splits_backward));
    gpus[stage % num_gpus].add(0, needs.back().weights);
  }
  for (std::size_t number = 0; number < graph.tasks.size(); ++number) {
    const SimulatedTask& task = graph.tasks[number];
    const BoundStage& need = needs[task.stage];
    Changes& changes = gpus[task.gpu];
    if (task.kind == TaskKind::kForward) changes.add(timeline.start[number], need.kept);
    if (task.kind == TaskKind::kBackward || task.kind == TaskKind::kInputGradient)
      changes.add(timeline.start[number], need.saved);
    if (task.kind == TaskKind::kBackward || task.kind == TaskKind::kWeightGradient) {
      changes.add(timeline.end[number], -need.kept - need.saved);
    }
  }
  ScheduleMemory memory;
  for (Changes& changes : gpus) memory.gpus.push_back(std::move(changes).samples());
  return memory;
}

ScheduleMemory round_memory(const TaskGraph& graph, const Timeline& timeline, const Workload& workload,
                            const std::vector<StageWork>& stages, const std::vector<LayerFootprint>& layers) {
  RP_ASSERT(static_cast<int>(layers.size()) == workload.num_layers() + 1);
  RunWork work{.workload = workload};
  for (const LayerFootprint& layer : layers) work.layers.push_back({.input = layer.activation});
  const std::vector<RunStage> run = run_stages(work, stages);
  ScheduleMemory memory;
  for (const std::vector<int>& order : graph.order) {
    memory.gpus.push_back(round_gpu(graph, timeline, order, workload.round_microbatches, run, layers));
  }
  Changes host;
  for (std::size_t number = 0; number < graph.tasks.size(); ++number) {
    const RunStage& stage = run[graph.tasks[number].stage];
    const bool ends_slot =
        graph.tasks[number].microbatch % workload.round_microbatches + 1 == workload.round_microbatches;
    host.add(timeline.end[number], stage.output_bytes);
    if (ends_slot) host.add(timeline.end[number], -stage.freed_bytes);
  }
  memory.host = std::move(host).samples();
  return memory;
}

}  // namespace rp
