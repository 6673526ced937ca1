#include "coordinator/simulated_steps.h"

#include <algorithm>

#include "common/nodes.h"
#include "scheduler/simulation/run_simulator.h"

namespace rp {

namespace {

constexpr std::uint64_t kWarmUp = 2;
constexpr double kMsPerNs = 1e-6;

}  // namespace

std::vector<LayerBytes> moved_bytes(const Catalogue& catalogue, int pipeline) {
  const PipelineRecord& record = catalogue.pipelines()[static_cast<std::size_t>(pipeline)];
  std::vector<LayerBytes> layers(record.num_layers);
  for (int layer = 0; layer < static_cast<int>(record.num_layers); ++layer) {
    LayerBytes& bytes = layers[static_cast<std::size_t>(layer)];
    for (const UseId use : catalogue.uses_of(record.catalogue_layer(layer))) {
      const WeightGroupRecord& group = catalogue.weight_groups()[catalogue.uses()[use].group];
      const auto length = static_cast<double>(group.bytes());
      bytes.weights += length;
      if (group.is_trained == 0) continue;
      bytes.gradient += length;
      if (group.first_use == use) bytes.updated += length;
    }
  }
  return layers;
}

RunWork work_like(const ScheduleReport::Shape& shape, const std::vector<LayerWork>& times,
                  const StepSettings& settings) {
  RunWork work;
  work.workload = {.num_gpus = settings.num_workers,
                   .num_microbatches = shape.num_rounds * shape.round_microbatches,
                   .round_microbatches = shape.round_microbatches,
                   .layers = std::vector<LayerWork>(times.begin(), times.end() - 1),
                   .head = times.back(),
                   .first_trained_layer = settings.first_trained_layer,
                   .recompute = shape.recompute};
  work.layers = settings.layers;
  work.asynchronous = settings.asynchronous;
  if (shape.num_rounds == rounds_of_first_node(settings.nodes.rounds_per_step, settings.nodes.num_nodes))
    work.nodes = settings.nodes;
  return work;
}

std::uint64_t steps_to_leave_out(const ScheduleReport& report, std::uint64_t least) {
  const std::uint64_t first = report.shape().first_step;
  return std::min(std::max(least, first > 1 ? first + 1 : 0), report.num_steps() - 1);
}

StepTimes compare_steps(const ScheduleReport& report, const std::vector<LayerTiming>& times,
                        const StepSettings& settings) {
  if (report.num_steps() <= kWarmUp) return {};
  const MeasuredSteps measured = report.measure(steps_to_leave_out(report, kWarmUp));
  StepTimes result{.num_steps = measured.num_steps, .measured_ms = measured.median_ms, .busy = measured.efficiency()};
  const ScheduleReport::Shape shape = report.shape();
  std::vector<LayerWork> work_ms;
  for (const LayerTiming& time : times)
    work_ms.push_back({.forward = time.forward * kMsPerNs, .backward = time.backward * kMsPerNs});
  const bool is_known =
      std::any_of(work_ms.begin(), work_ms.end(), [](const LayerWork& work) { return work.forward > 0; });
  if (shape.num_rounds == 0 || !is_known) return result;
  const RunWork work = work_like(shape, work_ms, settings);
  const RunResult simulated = simulate_run(work, stage_works(work.workload, shape.plan));
  result.simulated_ms = simulated.step_ms;
  result.simulated_busy = simulated.gpus.busy / simulated.gpus.total();
  return result;
}

}  // namespace rp
