// pipeline/torch_worker/device_plugin.h
// Devices that this library has no code for: a shared library beside it, loaded by the workers that need it.
//
// A plug-in uses the classes of this library as they are in its own headers, so both come from one build. It must be
// loaded before the process's first call of LibTorch that asks for its kind of device: LibTorch then remembers for good
// that there is none.
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
  std::string gpu{};                               // UUID; empty: the first one that this process sees
  std::uint64_t memory_bytes = 0;                  // of the GPU's that the worker may take; 0: what is free
  int num_sharers = 1;                             // workers of the run on this GPU
  std::uint64_t host_bytes = 0;                    // of the host store's weights and gradients
  std::string signals{};                           // "memops", "events"
  bool allows_nondeterminism = false;              // faster kernels whose sums have no fixed order
  bool fp16_accumulation = false;                  // of matrix products in fp16
  std::function<void(const std::string&)> warn{};  // tells the user one line
};

// Both faces of a device. Its parts live as long as it does.
class PluginDevice {
 public:
  virtual ~PluginDevice() = default;
  [[nodiscard]] virtual Device& device() = 0;
  [[nodiscard]] virtual TorchDevice& torch_device() = 0;
  // nullptr: no profiler watches this process.
  [[nodiscard]] virtual ProfilerRanges* profiler() { return nullptr; }
};

// What a plug-in exports as `rp_device_plugin`.
struct DevicePlugin {
  const char* version = nullptr;  // of the project
  // Throws rp::Error (kNoResource) with what is missing.
  std::unique_ptr<PluginDevice> (*make)(const PluginSettings& settings) = nullptr;
};
inline constexpr const char* kPluginSymbol = "rp_device_plugin";

// libroundpipe_NAME.so, from the directory of this library; loaded once, never unloaded. Throws rp::Error (kNoResource)
// if it is not there, cannot be loaded, or is of another version.
[[nodiscard]] const DevicePlugin& load_device_plugin(const std::string& name);

}  // namespace rp
