// pipeline/torch_backend.h
// Implements the backends on which LibTorch computes: the CPU, and NVIDIA GPUs through a plug-in.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/profiler_ranges.h"
#include "pipeline/backend.h"
#include "pipeline/torch_worker/device_plugin.h"

namespace rp {

// The common part of both.
class TorchBackend : public Backend {
 public:
  void set_pipelines(std::vector<PipelineCode> pipelines) override;

 protected:
  TorchBackend(const RuntimeSettings& settings, int num_workers) : settings_(settings), num_workers_(num_workers) {}
  // `warms_up`: the default of this device.
  void serve_on(Device& device, TorchDevice& torch_device, ProfilerRanges* profiler, bool warms_up,
                const WorkerSeat& seat) const;

  const RuntimeSettings& settings_;
  const int num_workers_;

 private:
  std::vector<PipelineCode> pipelines_;
};

class CpuBackend : public TorchBackend {
 public:
  CpuBackend(const RuntimeSettings& settings, int num_workers) : TorchBackend(settings, num_workers) {}
  // With the grain of a layer, no layer's last product is recomputed (roundpipe/recompute.h). This
  // costs copies of all layers' inputs, which are negligible if the device's memory is that of the
  // host.
  [[nodiscard]] RecomputeGrain recompute_grain() const override { return RecomputeGrain::kLayer; }
  using Backend::complete;
  void complete(PlanSettings& settings) const override;
  void complete(CoordinatorOptions& options) const override;
  void serve(const WorkerSeat& seat) const override;
};

class GpuBackend : public TorchBackend {
 public:
  GpuBackend(const RuntimeSettings& settings, AssignedGpu gpu, int num_workers)
      : TorchBackend(settings, num_workers), gpu_(std::move(gpu)) {}
  [[nodiscard]] std::uint64_t gpu_bytes() const override;
  void load() override;
  using Backend::complete;
  void complete(PlanSettings& settings) const override;
  void complete(CoordinatorOptions& options) const override;
  void serve(const WorkerSeat& seat) const override;

 private:
  [[nodiscard]] PluginSettings plugin_settings(const WorkerSeat& seat) const;

  const AssignedGpu gpu_;
};

}  // namespace rp
