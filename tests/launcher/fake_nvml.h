// tests/launcher/fake_nvml.h
// Replaces the driver's management library; tests define which cards exist.
#pragma once

#include <string>
#include <vector>

#include "launcher/machine/nvml.h"

namespace rp {

struct FakeCard {
  std::string uuid = "GPU-00";
  std::string name = "NVIDIA Fake 4090";
  unsigned int bus = 0x17;
  int compute_mode = 0;
  nvml::Result access = nvml::kSuccess;
  bool in_mig_mode = false;
  std::vector<std::string> instances{};  // UUIDs of its MIG instances
  unsigned int width = 16;
};

struct FakeDriver {
  std::vector<FakeCard> cards{};
  nvml::Result start = nvml::kSuccess;
  nvml::Result count = nvml::kSuccess;
  int num_held = 0;  // calls of init() without a shutdown() so far
};

// The driver whose state fake_nvml() reports; a test sets it.
FakeDriver& fake_driver();
[[nodiscard]] NvmlTable fake_nvml();

// Returns equal cards: GPU-a0..., GPU-b1..., at PCI buses 0x10, 0x11, ...
[[nodiscard]] std::vector<FakeCard> equal_cards(int number);

}  // namespace rp
