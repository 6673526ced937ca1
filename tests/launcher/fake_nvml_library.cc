// Replaces libnvidia-ml.so.1 in whole runs of rp-launch. Reports RP_FAKE_GPUS equal cards.

#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/launcher/fake_nvml.h"

namespace {

const rp::NvmlTable& table() {
  static const rp::NvmlTable made = [] {
    const char* number = std::getenv("RP_FAKE_GPUS");
    rp::fake_driver().cards = rp::equal_cards(number == nullptr ? 0 : std::atoi(number));
    return rp::fake_nvml();
  }();
  return made;
}

}  // namespace

// The names are those of NVIDIA's library.
extern "C" {
using rp::nvml::Device;
using rp::nvml::Result;
// Starts a thread that stays, as NVIDIA's library does.
Result nvmlInit_v2() {
  std::thread([] {
    while (true) pause();
  }).detach();
  return table().init();
}
Result nvmlShutdown() { return table().shutdown(); }
Result nvmlDeviceGetCount_v2(unsigned int* count) { return table().device_count(count); }
Result nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
  return table().device_by_index(index, device);
}
Result nvmlDeviceGetUUID(Device device, char* text, unsigned int length) { return table().uuid(device, text, length); }
Result nvmlDeviceGetName(Device device, char* text, unsigned int length) { return table().name(device, text, length); }
Result nvmlDeviceGetMemoryInfo(Device device, rp::nvml::Memory* memory) { return table().memory(device, memory); }
Result nvmlDeviceGetPciInfo_v3(Device device, rp::nvml::PciInfo* info) { return table().pci(device, info); }
// The other functions are missing, as in an old driver.
}
