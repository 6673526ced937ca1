// launcher/machine/gpu_system.h
// The GPUs of this machine, their driver and what each is good for, as far as that is known without a CUDA context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/machine/nvml.h"

namespace rp {

// 0: unknown.
struct PcieLink {
  int generation = 0;
  int width = 0;
  bool operator==(const PcieLink&) const = default;
};

// A card, or one MIG instance of a card.
struct Gpu {
  int index = 0;       // in the order of PCI addresses, as nvidia-smi counts; of an instance: that of its card
  std::string uuid{};  // "GPU-...", "MIG-..."
  std::string name{};
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::string pci_address{};  // "0000:17:00.0", as /sys names it
  int numa_node = -1;         // -1: unknown
  PcieLink link{};            // now; an idle card lowers its generation
  PcieLink most_link{};       // of card and slot together
  PcieLink card_link{};       // of the card in a slot that gives all
  int capability_major = 0;
  int capability_minor = 0;
  bool exclusive = false;  // its compute mode allows one process at a time
  bool is_instance = false;
  std::string problem{};  // why it cannot be used, and what to do; empty where it can
};

struct GpuSystem {
  std::string missing{};         // why there is no GPU, and what to do; empty where there is one
  std::string driver{};          // its version, "" if it does not say
  std::string cuda{};            // the newest CUDA that it serves
  std::vector<Gpu> gpus{};       // the cards, gpus[i].index == i
  std::vector<Gpu> instances{};  // of cards in MIG mode
};

// Never throws: what is wrong is said in `missing` or in a card's `problem`. `root` stands before /sys, for tests.
[[nodiscard]] GpuSystem observe_gpus(const NvmlTable& nvml, const std::string& root = "");
// Of this machine. The driver's library is loaded and let go again.
[[nodiscard]] GpuSystem observe_gpus();

// The node of a device by what /sys says; -1 if it does not.
[[nodiscard]] int numa_node_of(const std::string& pci_address, const std::string& root = "");

// What a card's own link can do, by what /sys says.
[[nodiscard]] PcieLink card_link_of(const std::string& pci_address, const std::string& root = "");

// "GPU 0 (NVIDIA GeForce RTX 4090, GPU-8932f937-...)"
[[nodiscard]] std::string gpu_text(const Gpu& gpu);

}  // namespace rp
