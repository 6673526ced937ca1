#include "pipeline/torch_backend.h"

#include <algorithm>
#include <cstdio>

#include "common/system/usable_cores.h"
#include "common/text.h"
#include "coordinator/coordinator.h"
#include "device/cpu_device.h"
#include "hoststore/memory/memory_limit.h"
#include "pipeline/torch_worker/cpu_tensor_memory.h"
#include "pipeline/torch_worker/cpu_torch_device.h"
#include "pipeline/torch_worker/torch_stage_executor.h"
#include "roundpipe/error.h"
#include "worker/worker.h"

namespace rp {

namespace {

// Calls leave_to_process_end() when the worker ends, by return or by exception, if its process ends
// with it.
struct ProcessEnd {
  Device& device;
  ServeEnd end;
  ~ProcessEnd() {
    if (end == ServeEnd::kEndOfProcess) device.leave_to_process_end();
  }
};

}  // namespace

void TorchBackend::set_pipelines(std::vector<PipelineCode> pipelines) {
  pipelines_ = std::move(pipelines);
  for (const PipelineCode& pipeline : pipelines_) {
    const LayerSpec& layer = pipeline.model->layers().front();
    if (!layer.cost) continue;
    throw Error(ExitCode::kUsage,
                cat(layer.name,
                    ": an emulated layer has shapes and no weights, so it runs on an emulated device only, as --device "
                    "sim:rtx4090; to train on this machine give a model's directory"));
  }
}

void TorchBackend::serve_on(Device& device, TorchDevice& torch_device, ProfilerRanges* profiler, bool warms_up,
                            const WorkerSeat& seat) const {
  TaskRanges ranges(profiler);
  Store& store = seat.store;
  SequenceWord& heartbeat = store.worker_words(seat.worker).heartbeat;
  auto report_layer = [board = seat.board, &heartbeat, &ranges](int layer, int microbatch) mutable {
    ranges.layer(layer);
    heartbeat.publish_quietly(heartbeat.observe() + 1);
    if (!board) return;
    board->publish_heartbeat();
    board->publish_position(layer, microbatch);
  };
  TorchStageExecutor executor(pipelines_, store.catalogue(), torch_device,
                              {.num_threads = static_cast<int>(store.header().threads_per_worker),
                               .warms_up = settings_.warm_up.value_or(warms_up)},
                              std::move(report_layer));
  Worker(store, seat.worker, device, executor, seat.board, seat.trace, &ranges).serve();
}

// On the CPU

void CpuBackend::complete(PlanSettings& settings) const {
  // A worker holds the weights of two stages, and gradients in fp32 and in the working dtype: about
  // six times a stage.
  if (settings.limits.max_stage_bytes == 0)
    settings.limits.max_stage_bytes = available_memory() / (12 * static_cast<std::uint64_t>(num_workers_));
}

void CpuBackend::complete(CoordinatorOptions& options) const {
  options.optimizer_threads = optimizer_threads(usable_cores(), 0);
}

void CpuBackend::serve(const WorkerSeat& seat) const {
  Store& store = seat.store;
  std::uint64_t max_elements = 0;
  for (const WeightGroupRecord& group : store.catalogue().weight_groups())
    max_elements = std::max(max_elements, group.num_elements);
  if (seat.has_own_process) store.populate_ahead(1);
  const std::shared_ptr<CpuMemory> memory = install_cpu_tensor_memory();
  CpuDevice device(memory);
  CpuTorchDevice torch_device(memory, static_cast<int>(store.header().threads_per_worker), max_elements);
  serve_on(device, torch_device, nullptr, false, seat);
}

// On GPUs

std::uint64_t GpuBackend::gpu_bytes() const { return bytes_of(settings_.gpu_memory.value_or("")).value_or(gpu_.bytes); }

void GpuBackend::load() { (void)load_device_plugin(*settings_.device); }

void GpuBackend::complete(PlanSettings& settings) const {
  settings.fits_device = true;
  if (settings.limits.max_stage_bytes == 0) settings.limits.max_stage_bytes = UINT64_MAX;  // memory is measured
}

void GpuBackend::complete(CoordinatorOptions& options) const {
  options.optimizer_threads = optimizer_threads(usable_cores(), num_workers_);
}

void GpuBackend::serve(const WorkerSeat& seat) const {
  const std::unique_ptr<PluginDevice> device = load_device_plugin(*settings_.device).make(plugin_settings(seat));
  const ProcessEnd leave{device->device(), seat.end};
  serve_on(device->device(), device->torch_device(), device->profiler(), true, seat);
}

PluginSettings GpuBackend::plugin_settings(const WorkerSeat& seat) const {
  std::uint64_t host_bytes = 0;
  for (const Store::Region& region : seat.store.regions()) host_bytes += region.bytes;
  return {.gpu = gpu_.uuid,
          .memory_bytes = bytes_of(settings_.gpu_memory.value_or("")).value_or(0),
          .num_sharers = gpu_.num_sharers,
          .host_bytes = host_bytes,
          .signals = *settings_.signals,
          .allows_nondeterminism = *settings_.allow_nondeterminism,
          .fp16_accumulation = *settings_.fp16_accumulation,
          .warn = [worker = seat.worker](const std::string& text) {
            std::fprintf(stderr, "roundpipe: worker %d: %s\n", worker, text.c_str());
          }};
}

}  // namespace rp
