#include "pipeline/emulated_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "common/text.h"
#include "coordinator/coordinator.h"
#include "coordinator/simulated_steps.h"
#include "coordinator/updates/emulated_group_updater.h"
#include "roundpipe/error.h"
#include "scheduler/simulation/run_simulator.h"
#include "worker/executor/emulated_stage_executor.h"
#include "worker/worker.h"

namespace rp {

namespace {

constexpr double kNsPerMsAsDouble = 1e6;
constexpr double kBytesPerMs = 1e6;  // at one GB/s
constexpr std::uint64_t kWarmUp = 4;

std::int64_t ns_of(double ms) { return std::llround(ms * kNsPerMsAsDouble); }

// Describes an activation with the number of bytes of the layer's.
TensorDesc output_of(std::uint64_t bytes) {
  TensorDesc desc{.dtype = DType::kUInt8, .rank = 1};
  desc.shape[0] = static_cast<std::int64_t>(bytes);
  return desc;
}

double rate(double gbs) { return gbs > 0 ? gbs * kBytesPerMs : kUnlimited; }

// Adds what moves through host memory, and the layers' inputs. For whole layers, of which a node may own a part.
void complete_layer_bytes(std::vector<LayerBytes>& layers, const Catalogue& catalogue,
                          const std::vector<std::uint64_t>& output_bytes, bool adds_rounds) {
  const EmulatedGroupUpdater updater(catalogue, {}, adds_rounds);
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    LayerBytes& bytes = layers[layer];
    for (const UseId use : catalogue.uses_of(CatalogueLayer(layer))) {
      const GroupId index = catalogue.uses()[use].group;
      const WeightGroupRecord& group = catalogue.weight_groups()[index];
      if (group.is_trained == 0) continue;
      const ElementRange all{.begin = 0, .end = group.num_elements};
      if (adds_rounds) bytes.sum += static_cast<double>(updater.sum_bytes({.use = use, .elements = all}, false));
      if (group.first_use == use) bytes.update += static_cast<double>(updater.update_bytes(index, all.size(), false));
    }
    if (layer > 0) bytes.input = static_cast<double>(output_bytes[layer - 1]);
  }
}

template <typename... Values>
std::string line(const char* format, Values... values) {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return std::string("roundpipe:   ") + text.data() + "\n";
}

}  // namespace

void EmulatedBackend::set_pipelines(std::vector<PipelineCode> pipelines) {
  machine_ = emulated_machine(settings_.device->substr(kEmulatedDevice.size()));
  num_layers_ = pipelines.front().model->num_layers();
  std::vector<const LayerCost*> costs;
  for (const PipelineCode& pipeline : pipelines) {
    for (const LayerSpec& layer : pipeline.model->layers()) costs.push_back(layer.cost.get());
  }
  times_ = machine_.layer_times(costs);
  expansion_times_ = machine_.expansion_times(costs);
  for (const LayerCost* cost : costs) output_bytes_.push_back(cost == nullptr ? 64 : cost->output_bytes);
  if (!*settings_.check_consistency) return;
  throw Error(ExitCode::kUsage,
              cat("--check-consistency looks at data, and --device ", *settings_.device, " has none; leave one out"));
}

void EmulatedBackend::complete_store(StoreSettings& settings) const {
  settings.is_sparse = true;
  settings.emulated_memory_bytes = machine_.host_memory_bytes;
  settings.arena_limit_bytes =
      machine_.host_memory_bytes > 0 ? machine_.host_memory_bytes : StoreSettings().arena_limit_bytes;
}

void EmulatedBackend::complete_plan(PlanSettings& settings) const {
  // Six times the weights of two stages, as on the CPU.
  if (settings.limits.max_stage_bytes == 0)
    settings.limits.max_stage_bytes = machine_.memory_bytes > 0 ? machine_.memory_bytes / 12 : UINT64_MAX;
}

void EmulatedBackend::complete_coordinator(CoordinatorOptions& options) const {
  options.make_updater = emulated_updaters({.bytes_per_ns = machine_.optimizer_gbs});
}

void EmulatedBackend::serve(const WorkerSeat& seat) const {
  const double slowness = machine_.slowness_of(seat.worker);
  std::vector<EmulatedLayer> layers;
  for (std::size_t i = 0; i < times_.size(); ++i) {
    layers.push_back({.forward_ns = ns_of(times_[i].forward * slowness),
                      .backward_ns = ns_of(times_[i].backward * slowness),
                      .expansion_ns = ns_of(expansion_times_[i] * slowness),
                      .output = output_of(output_bytes_[i])});
  }
  const std::int64_t copy_ns = ns_of(machine_.copy_latency_ms);
  EmulatedDevice device({.name = machine_.name,
                         .upload_bytes_per_ns = machine_.upload_gbs,
                         .download_bytes_per_ns = machine_.download_gbs,
                         .activation_latency_ns = copy_ns + (num_workers_ > 1 ? ns_of(machine_.hop_ms) : 0),
                         .copy_latency_ns = copy_ns,
                         .memory_bytes = machine_.memory_bytes,
                         .activations_first = seat.store.header().weights_yield != 0});
  EmulatedStageExecutor executor(std::move(layers), device, seat.store.catalogue());
  Worker(seat.store, seat.worker, device, executor, seat.board, seat.trace).serve();
}

std::string EmulatedBackend::report(const ScheduleReport& steps, const Store& store,
                                    const StepSettings& settings) const {
  if (steps.num_steps() < 2) return {};
  const std::uint64_t warm_up = steps_to_leave_out(steps, kWarmUp);
  const MeasuredSteps measured = steps.measure(warm_up);
  return cat("roundpipe: ", machine_.name, ", ", num_workers_, " workers, ", measured.num_steps, " steps after ",
             warm_up, ":\n", comparison(steps.shape(), store, settings, measured));
}

std::string EmulatedBackend::comparison(const ScheduleReport::Shape& shape, const Store& store,
                                        const StepSettings& settings, const MeasuredSteps& measured) const {
  const std::vector<LayerWork> times(times_.begin(), times_.begin() + num_layers_);
  RunWork work = work_like(shape, times, settings);
  Workload& workload = work.workload;
  workload.hop = machine_.hop_ms;
  if (machine_.workload && static_cast<int>(machine_.workload->slowness.size()) == num_workers_) {
    workload.slowness = machine_.workload->slowness;
  }
  const std::vector<StageWork> stages = stage_works(workload, shape.plan);
  complete_layer_bytes(work.layers, store.catalogue(), output_bytes_,
                       shape.num_rounds > 1 || store.catalogue().place().num_nodes > 1);
  work.machine = {.upload = rate(machine_.upload_gbs),
                  .download = rate(machine_.download_gbs),
                  .copy_latency = machine_.copy_latency_ms,
                  .updates = rate(machine_.optimizer_gbs)};
  work.policy.weights_yield = store.header().weights_yield != 0;
  work.policy.gradients_yield = store.header().gradients_yield != 0;
  const RunResult simulated = simulate_run(work, stages);
  RoundSimulator without_copies(workload);
  const double least_ms = settings.asynchronous ? without_copies.period(stages) : without_copies.makespan(stages);
  const double all = simulated.gpus.total();
  const double least_busy = busy_ms_per_gpu(workload, stages) / least_ms;
  const double max_dispatch_us = static_cast<double>(measured.max_dispatch_ns) * 1e-3;
  return line("step       %10.2f ms    simulated %10.2f ms, without copies and updates %.2f ms", measured.step_ms(),
              simulated.step_ms, least_ms) +
         line("computing  %10.2f %%     simulated %10.2f %%, without copies and updates %.2f %%",
              100 * measured.efficiency(), 100 * simulated.gpus.busy / all, 100 * least_busy) +
         line("copies     %10.2f %%     simulated %10.2f %%   (a GPU stood still and only its own copies were missing)",
              100 * measured.exposed_part(), 100 * simulated.gpus.transfers() / all) +
         line("dispatch   %10.2f us    %.4f %% of a task, %.2f us at most   (nothing was missing)",
              measured.dispatch_us_per_task(), 100 * measured.dispatch_part(), max_dispatch_us);
}

}  // namespace rp
