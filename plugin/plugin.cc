// libroundpipe_cuda.so: GPUs of NVIDIA's as devices of workers (pipeline/device_plugin.h).
#include "cuda/cuda_device.h"
#include "plugin/cuda_torch_device.h"

namespace rp {

namespace {

class CudaPluginDevice : public PluginDevice {
 public:
  explicit CudaPluginDevice(const PluginSettings& settings)
      : device_(cuda_driver(),
                {.uuid = settings.gpu,
                 .memory_bytes = settings.memory_bytes,
                 .num_sharers = settings.num_sharers,
                 .signals = settings.signals == "events" ? GpuSignals::kEvents : GpuSignals::kWords},
                settings.warn),
        torch_device_(device_, settings) {}
  [[nodiscard]] Device& device() override { return device_; }
  [[nodiscard]] TorchDevice& torch_device() override { return torch_device_; }

 private:
  CudaDevice device_;
  CudaTorchDevice torch_device_;
};

}  // namespace

}  // namespace rp

extern "C" __attribute__((visibility("default"))) const rp::DevicePlugin rp_device_plugin = {
    .version = RP_VERSION,
    .make = [](const rp::PluginSettings& settings) -> std::unique_ptr<rp::PluginDevice> {
      return std::make_unique<rp::CudaPluginDevice>(settings);
    }};
