// pipeline/torch_worker/device_plugin.h
// Loads devices that this library has no code for from plug-ins: shared libraries in the same
// directory, loaded by the workers that need them.
//
// A plug-in uses the classes of this library through its internal headers, so both must come from
// one build. It must be loaded before the process first asks LibTorch for its kind of device,
// because LibTorch otherwise remembers for the rest of the process that there is none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/device.h"
#include "device/profiler_ranges.h"
#include "pipeline/torch_worker/torch_device.h"

namespace rp {

struct PluginSettings {
  std::string gpu{};                               // UUID; empty: the first GPU that this process sees
  std::uint64_t memory_bytes = 0;                  // memory of the GPU that the worker may use; 0: all free memory
  int num_sharers = 1;                             // workers of the run on this GPU
  std::uint64_t host_bytes = 0;                    // size of the weights and gradients in the host store
  bool exchanges_gradients = false;                // with GPUs of other nodes, through NCCL
  std::string signals{};                           // "memops", "events"
  bool allows_nondeterminism = false;              // faster kernels whose sums have no fixed order
  bool fp16_accumulation = false;                  // sums matrix products of fp16 in fp16
  std::function<void(const std::string&)> warn{};  // prints one line for the user
};

// A device as the worker sees it, and the same device as LibTorch sees it. Both live as long as
// this object.
class PluginDevice {
 public:
  virtual ~PluginDevice() = default;
  [[nodiscard]] virtual Device& device() = 0;
  [[nodiscard]] virtual TorchDevice& torch_device() = 0;
  // Returns nullptr if no profiler watches this process.
  [[nodiscard]] virtual ProfilerRanges* profiler() { return nullptr; }
};

// The symbol `rp_device_plugin` that a plug-in exports.
struct DevicePlugin {
  const char* version = nullptr;  // version of the project
  // Makes the device. Throws rp::Error (kNoResource) that names what is missing.
  std::unique_ptr<PluginDevice> (*make)(const PluginSettings& settings) = nullptr;
};
inline constexpr const char* kPluginSymbol = "rp_device_plugin";

// Returns the plug-in libroundpipe_NAME.so from the directory of this library. It is loaded once
// and never unloaded. Throws rp::Error (kNoResource) if it does not exist, cannot be loaded, or has
// another version.
[[nodiscard]] const DevicePlugin& load_device_plugin(const std::string& name);

}  // namespace rp
