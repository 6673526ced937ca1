#include <cstdio>

#include "pipeline/torch_worker/device_plugin.h"
#include "tests/parity/place.h"

namespace rp::models {

namespace {

// The models are small. The rest remains free for other processes.
constexpr std::uint64_t kMemoryBytes = std::uint64_t{4} << 30;

class PluginPlace : public Place {
 public:
  explicit PluginPlace(std::unique_ptr<PluginDevice> plugin) : plugin_(std::move(plugin)) {
    plugin_->torch_device().enter_thread(1);
  }
  [[nodiscard]] c10::Device device() const override { return plugin_->torch_device().device(); }

 private:
  const std::unique_ptr<PluginDevice> plugin_;
};

}  // namespace

std::unique_ptr<Place> open_gpu() {
  const auto warn = [](const std::string& text) { std::fprintf(stderr, "model_values: %s\n", text.c_str()); };
  return std::make_unique<PluginPlace>(load_device_plugin("cuda").make({.memory_bytes = kMemoryBytes, .warn = warn}));
}

}  // namespace rp::models
