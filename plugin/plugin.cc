// Exports NVIDIA GPUs as devices of workers, in libroundpipe_cuda.so
// (pipeline/torch_worker/device_plugin.h).
#include <cstdlib>

#include "cuda/cuda_device.h"
#include "cuda/nvtx_ranges.h"
#include "plugin/cuda_torch_device.h"

namespace rp {

namespace {

// Sets the variable that rp-launch sets for a worker (docs/launcher.md), for programs that run
// without rp-launch. The driver reads it when it starts, so it is set when the first thread of a
// process loads this library.
[[maybe_unused]] const bool g_has_variable = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0) == 0;

class CudaPluginDevice : public PluginDevice {
 public:
  explicit CudaPluginDevice(const PluginSettings& settings)
      : device_(cuda_driver(),
                {.uuid = settings.gpu,
                 .memory_bytes = settings.memory_bytes,
                 .num_sharers = settings.num_sharers,
                 .host_bytes = settings.host_bytes,
                 .signals = settings.signals == "events" ? GpuSignals::kEvents : GpuSignals::kWords,
                 .exchanges_gradients = settings.exchanges_gradients},
                settings.warn),
        torch_device_(device_, settings),
        profiler_(make_nvtx_ranges(
            {named(StreamKind::kUploadParameters, "upload weights"),
             named(StreamKind::kUploadActivations, "upload inputs"), named(StreamKind::kDownload, "download"),
             named(StreamKind::kDownloadGradients, "download gradients"), named(StreamKind::kCompute, "compute")})) {}
  [[nodiscard]] Device& device() override { return device_; }
  [[nodiscard]] TorchDevice& torch_device() override { return torch_device_; }
  [[nodiscard]] ProfilerRanges* profiler() override { return profiler_.get(); }

 private:
  [[nodiscard]] NamedStream named(StreamKind kind, const char* name) {
    return {.stream = static_cast<CudaStream&>(device_.stream(kind)).get(), .name = name};
  }

  CudaDevice device_;
  CudaTorchDevice torch_device_;
  const std::unique_ptr<ProfilerRanges> profiler_;
};

}  // namespace

}  // namespace rp

extern "C" __attribute__((visibility("default"))) const rp::DevicePlugin rp_device_plugin = {
    .version = RP_VERSION, .make = [](const rp::PluginSettings& settings) -> std::unique_ptr<rp::PluginDevice> {
      return std::make_unique<rp::CudaPluginDevice>(settings);
    }};
