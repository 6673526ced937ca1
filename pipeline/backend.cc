#include "pipeline/backend.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/system/usable_cores.h"
#include "common/text.h"
#include "coordinator/coordinator.h"
#include "device/cpu_device.h"
#include "hoststore/memory/memory_limit.h"
#include "nccl/nccl_table.h"
#include "pipeline/description/tensors.h"
#include "pipeline/emulated_backend.h"
#include "pipeline/torch_worker/cpu_tensor_memory.h"
#include "pipeline/torch_worker/cpu_torch_device.h"
#include "pipeline/torch_worker/device_plugin.h"
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

// The common part of the backends on which LibTorch computes.
class TorchBackend : public Backend {
 public:
  TorchBackend(const RuntimeSettings& settings, int num_workers) : settings_(settings), num_workers_(num_workers) {}

  void set_pipelines(std::vector<PipelineCode> pipelines) override {
    pipelines_ = std::move(pipelines);
    for (const PipelineCode& pipeline : pipelines_) {
      const LayerSpec& layer = pipeline.model->layers().front();
      if (!layer.cost) continue;
      throw Error(
          ExitCode::kUsage,
          cat(layer.name,
              ": an emulated layer has shapes and no weights, so it runs on an emulated device only, as --device "
              "sim:rtx4090; to train on this machine give a model's directory"));
    }
  }

 protected:
  // `warms_up`: the default of this device.
  void serve_on(Device& device, TorchDevice& torch_device, ProfilerRanges* profiler, bool warms_up,
                const WorkerSeat& seat) const {
    TaskRanges ranges(profiler);
    Store& store = seat.store;
    SequenceWord& heartbeat = store.worker_words(seat.worker).heartbeat;
    auto report_layer = [board = seat.board, &heartbeat, &ranges](int layer, int microbatch,
                                                                  const Tensors& inputs) mutable {
      ranges.layer(layer);
      heartbeat.publish_quietly(heartbeat.observe() + 1);
      if (board) board->publish_layer(layer, microbatch, shapes_text(inputs));
    };
    TorchStageExecutor executor(pipelines_, store.catalogue(), torch_device,
                                {.num_threads = static_cast<int>(store.header().threads_per_worker),
                                 .warms_up = settings_.warm_up.value_or(warms_up)},
                                std::move(report_layer));
    NcclTable nccl;
    std::unique_ptr<NodeGradients> nodes;
    if (store.catalogue().workers_exchange()) {
      nccl = load_nccl();
      nodes = std::make_unique<NodeGradients>(
          nccl, store, seat.worker, device,
          NodeGradients::Settings{.connect_ns = *settings_.attach_timeout_seconds * kNsPerSecond});
    }
    Worker(store, seat.worker, device, executor, seat.board, seat.trace, &ranges, std::move(nodes)).serve();
  }

  const RuntimeSettings& settings_;
  const int num_workers_;

 private:
  std::vector<PipelineCode> pipelines_;
};

class CpuBackend : public TorchBackend {
 public:
  using TorchBackend::TorchBackend;

  // With the grain of a layer, no layer's last product is recomputed (roundpipe/recompute.h). This
  // costs copies of all layers' inputs, which are negligible if the device's memory is that of the
  // host.
  [[nodiscard]] RecomputeGrain recompute_grain() const override { return RecomputeGrain::kLayer; }

  void complete_plan(PlanSettings& settings) const override {
    // A worker holds the weights of two stages, and gradients in fp32 and in the working dtype: about
    // six times a stage.
    if (settings.limits.max_stage_bytes == 0)
      settings.limits.max_stage_bytes = available_memory() / (12 * static_cast<std::uint64_t>(num_workers_));
  }

  void complete_coordinator(CoordinatorOptions& options) const override {
    options.optimizer_threads = optimizer_threads(usable_cores(), 0);
  }

  void serve(const WorkerSeat& seat) const override {
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
};

class GpuBackend : public TorchBackend {
 public:
  GpuBackend(const RuntimeSettings& settings, AssignedGpu gpu, int num_workers)
      : TorchBackend(settings, num_workers), gpu_(std::move(gpu)) {}

  [[nodiscard]] std::uint64_t gpu_bytes() const override {
    return bytes_of(settings_.gpu_memory.value_or("")).value_or(gpu_.bytes);
  }

  void load() override { (void)load_device_plugin(*settings_.device); }

  void complete_plan(PlanSettings& settings) const override {
    settings.fits_device = true;
    if (settings.limits.max_stage_bytes == 0) settings.limits.max_stage_bytes = UINT64_MAX;  // memory is measured
  }

  void complete_coordinator(CoordinatorOptions& options) const override {
    options.optimizer_threads = optimizer_threads(usable_cores(), num_workers_);
  }

  void serve(const WorkerSeat& seat) const override {
    const std::unique_ptr<PluginDevice> device = load_device_plugin(*settings_.device).make(plugin_settings(seat));
    const ProcessEnd leave{device->device(), seat.end};
    serve_on(device->device(), device->torch_device(), device->profiler(), true, seat);
  }

 private:
  [[nodiscard]] PluginSettings plugin_settings(const WorkerSeat& seat) const {
    std::uint64_t host_bytes = 0;
    for (const Store::Region& region : seat.store.regions()) host_bytes += region.bytes;
    return {.gpu = gpu_.uuid,
            .memory_bytes = bytes_of(settings_.gpu_memory.value_or("")).value_or(0),
            .num_sharers = gpu_.num_sharers,
            .host_bytes = host_bytes,
            .exchanges_gradients = seat.store.catalogue().workers_exchange(),
            .signals = *settings_.signals,
            .allows_nondeterminism = *settings_.allow_nondeterminism,
            .fp16_accumulation = *settings_.fp16_accumulation,
            .warn = [worker = seat.worker](const std::string& text) {
              std::fprintf(stderr, "roundpipe: worker %d: %s\n", worker, text.c_str());
            }};
  }

  const AssignedGpu gpu_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const RuntimeSettings& settings, const AssignedGpu& gpu, int num_workers) {
  if (*settings.device == "cpu") return std::make_unique<CpuBackend>(settings, num_workers);
  if (settings.device->starts_with(kEmulatedDevice)) return std::make_unique<EmulatedBackend>(settings, num_workers);
  return std::make_unique<GpuBackend>(settings, gpu, num_workers);
}

}  // namespace rp
