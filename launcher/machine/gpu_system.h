// launcher/machine/gpu_system.h
// Describes the GPUs of this machine and their driver, as known without a CUDA context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/machine/nvml.h"

namespace rp {

// A PCIe link. In each field, 0 means unknown.
struct PcieLink {
  int generation = 0;
  int width = 0;
  bool operator==(const PcieLink&) const = default;
};

// A card, or one MIG instance of a card.
struct Gpu {
  int index = 0;       // by PCI address, as nvidia-smi counts; an instance has that of its card
  std::string uuid{};  // "GPU-...", "MIG-..."
  std::string name{};
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::string pci_address{};  // "0000:17:00.0", as /sys names it
  int numa_node = -1;         // -1: unknown
  PcieLink link{};            // in use now; an idle card lowers its generation
  PcieLink most_link{};       // the maximum of card and slot together
  PcieLink card_link{};       // the maximum of the card itself
  int capability_major = 0;
  int capability_minor = 0;
  bool exclusive = false;  // its compute mode allows only one process at a time
  bool is_instance = false;
  std::string problem{};  // why it cannot be used, and what to do; empty if it can
};

struct GpuSystem {
  std::string missing{};         // why there is no GPU, and what to do; empty if there is one
  std::string driver{};          // version of the driver; "" if unknown
  std::string cuda{};            // the newest CUDA version that the driver supports
  std::vector<Gpu> gpus{};       // the cards, gpus[i].index == i
  std::vector<Gpu> instances{};  // MIG instances of cards in MIG mode
};

// Never throws: problems are described in `missing` or in a card's `problem`. `root` is prepended
// to /sys, for tests.
[[nodiscard]] GpuSystem observe_gpus(const NvmlTable& nvml, const std::string& root = "");
// Observes this machine: loads the driver's management library and unloads it again.
[[nodiscard]] GpuSystem observe_gpus();

// Returns the NUMA node of a device according to /sys; -1 if it is unknown.
[[nodiscard]] int numa_node_of(const std::string& pci_address, const std::string& root = "");

// Returns the maximum of a card's own link according to /sys.
[[nodiscard]] PcieLink card_link_of(const std::string& pci_address, const std::string& root = "");

// Returns, for example, "GPU 0 (NVIDIA GeForce RTX 4090, GPU-8932f937-...)".
[[nodiscard]] std::string gpu_text(const Gpu& gpu);

}  // namespace rp
