#include "launcher/machine/gpu_system.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <optional>

#include "common/system/blocked_signals.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::string reason(const NvmlTable& nvml, nvml::Result result) {
  const char* text = nvml.error_string == nullptr ? nullptr : nvml.error_string(result);
  return text == nullptr ? cat("error ", result, " of NVML") : std::string(text);
}

// Returns the remedy for a driver that cannot be initialised.
std::string init_remedy(nvml::Result result) {
  switch (result) {
    case nvml::kDriverNotLoaded:
      return "load the kernel module (modprobe nvidia); in a container, start it with its GPUs (docker run --gpus all)";
    case nvml::kVersionMismatch: return "the driver was updated under the loaded kernel module: restart the machine";
    case nvml::kNoPermission: return "this user may not open /dev/nvidiactl: see its permissions";
    default: return "see what nvidia-smi says";
  }
}

template <typename Function, typename... Arguments>
std::string nvml_text(Function function, Arguments... arguments) {
  std::array<char, nvml::kTextBytes> text{};
  if (function == nullptr || function(arguments..., text.data(), nvml::kTextBytes) != nvml::kSuccess) return "";
  return text.data();
}

template <typename Function>
int number_of(Function function, nvml::Device device) {
  unsigned int number = 0;
  if (function == nullptr || function(device, &number) != nvml::kSuccess) return 0;
  return static_cast<int>(number);
}

std::string pci_address(const NvmlTable& nvml, nvml::Device device) {
  nvml::PciInfo info{};
  if (nvml.pci(device, &info) != nvml::kSuccess) return "";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", info.domain, info.bus, info.device);
  return text.data();
}

void read_memory(const NvmlTable& nvml, nvml::Device device, Gpu& gpu) {
  nvml::Memory memory{};
  if (nvml.memory(device, &memory) != nvml::kSuccess) return;
  gpu.memory_bytes = memory.total;
  gpu.free_bytes = memory.free;
}

void read_compute_mode(const NvmlTable& nvml, nvml::Device device, Gpu& gpu) {
  int mode = 0;
  if (nvml.compute_mode == nullptr || nvml.compute_mode(device, &mode) != nvml::kSuccess) return;
  gpu.exclusive = mode == nvml::kExclusiveProcess || mode == nvml::kExclusiveThread;
  if (mode == nvml::kProhibited) {
    gpu.problem = cat("its compute mode is Prohibited; change it with nvidia-smi -i ", gpu.index, " -c DEFAULT");
  }
}

bool is_in_mig_mode(const NvmlTable& nvml, nvml::Device device) {
  unsigned int current = 0;
  unsigned int pending = 0;
  return nvml.mig_mode != nullptr && nvml.mig_mode(device, &current, &pending) == nvml::kSuccess && current == 1;
}

std::vector<Gpu> instances_of(const NvmlTable& nvml, nvml::Device device, const Gpu& card) {
  std::vector<Gpu> instances;
  if (nvml.mig_instance == nullptr) return instances;
  const int most = number_of(nvml.most_mig_instances, device);
  for (int i = 0; i < most; ++i) {
    nvml::Device handle = nullptr;
    if (nvml.mig_instance(device, static_cast<unsigned>(i), &handle) != nvml::kSuccess)
      continue;  // this instance was not created
    Gpu instance = card;
    instance.is_instance = true;
    instance.problem.clear();
    instance.uuid = nvml_text(nvml.uuid, handle);
    instance.name = nvml_text(nvml.name, handle);
    read_memory(nvml, handle, instance);
    if (!instance.uuid.empty()) instances.push_back(std::move(instance));
  }
  return instances;
}

Gpu read_card(const NvmlTable& nvml, nvml::Device device, int index, const std::string& root) {
  Gpu gpu;
  gpu.index = index;
  gpu.uuid = nvml_text(nvml.uuid, device);
  gpu.name = nvml_text(nvml.name, device);
  read_memory(nvml, device, gpu);
  gpu.pci_address = pci_address(nvml, device);
  gpu.numa_node = numa_node_of(gpu.pci_address, root);
  gpu.card_link = card_link_of(gpu.pci_address, root);
  gpu.link = {number_of(nvml.link_generation, device), number_of(nvml.link_width, device)};
  gpu.most_link = {number_of(nvml.most_link_generation, device), number_of(nvml.most_link_width, device)};
  if (nvml.capability != nullptr) (void)nvml.capability(device, &gpu.capability_major, &gpu.capability_minor);
  read_compute_mode(nvml, device, gpu);
  if (gpu.uuid.empty()) gpu.problem = "the driver does not tell its UUID; see what nvidia-smi -L says";
  return gpu;
}

// Returns the number at the beginning of a file in the device's folder of /sys.
template <typename T>
std::optional<T> pci_figure(const std::string& pci_address, const char* name, const std::string& root) {
  std::ifstream file(cat(root, "/sys/bus/pci/devices/", pci_address, "/", name));
  T number{};
  if (file >> number) return number;
  return std::nullopt;
}

void read_cards(const NvmlTable& nvml, const std::string& root, GpuSystem& system) {
  unsigned int count = 0;
  const nvml::Result counted = nvml.device_count(&count);
  if (counted != nvml::kSuccess) {
    system.missing = cat("no CUDA device: the driver does not count its GPUs (", reason(nvml, counted),
                         "); see what nvidia-smi says");
    return;
  }
  for (unsigned int i = 0; i < count; ++i) {
    nvml::Device device = nullptr;
    const int index = static_cast<int>(i);
    const nvml::Result found = nvml.device_by_index(i, &device);
    if (found != nvml::kSuccess) {
      const char* remedy = found == nvml::kGpuIsLost ? "it has fallen off the bus: reset it or restart the machine"
                                                     : "see what nvidia-smi says";
      system.gpus.push_back(
          {.index = index, .problem = cat("the driver gives no access to it (", reason(nvml, found), "); ", remedy)});
      continue;
    }
    Gpu gpu = read_card(nvml, device, index, root);
    if (is_in_mig_mode(nvml, device)) {
      for (Gpu& instance : instances_of(nvml, device, gpu)) system.instances.push_back(std::move(instance));
      gpu.problem =
          cat("it is in MIG mode; name its instances by UUID (nvidia-smi -L), or end that mode with nvidia-smi -i ",
              index, " -mig 0");
    }
    system.gpus.push_back(std::move(gpu));
  }
  if (count == 0) {
    system.missing =
        "no CUDA device: the driver runs and sees no NVIDIA GPU; in a container, start it with its GPUs (docker run "
        "--gpus all)";
  }
}

}  // namespace

int numa_node_of(const std::string& pci_address, const std::string& root) {
  return pci_address.empty() ? -1 : std::max(-1, pci_figure<int>(pci_address, "numa_node", root).value_or(-1));
}

PcieLink card_link_of(const std::string& pci_address, const std::string& root) {
  if (pci_address.empty()) return {};
  const double speed = pci_figure<double>(pci_address, "max_link_speed", root).value_or(0);  // "16.0 GT/s PCIe"
  PcieLink link{.generation = 0, .width = pci_figure<int>(pci_address, "max_link_width", root).value_or(0)};
  if (link.width > 32) link.width = 0;  // the kernel reports 255 if it is unknown
  // Gigatransfers per second of each generation.
  constexpr std::array kSpeeds = {2.5, 5.0, 8.0, 16.0, 32.0, 64.0};
  for (std::size_t i = 0; i < kSpeeds.size() && speed >= kSpeeds[i]; ++i) link.generation = static_cast<int>(i) + 1;
  return link;
}

std::string gpu_text(const Gpu& gpu) {
  return cat(gpu.is_instance ? "instance of GPU " : "GPU ", gpu.index, " (",
             gpu.name.empty() ? "" : cat(gpu.name, ", "), gpu.uuid.empty() ? "no UUID" : gpu.uuid, ")");
}

GpuSystem observe_gpus(const NvmlTable& nvml, const std::string& root) {
  GpuSystem system;
  const nvml::Result started = nvml.init();
  if (started != nvml::kSuccess) {
    system.missing =
        cat("no CUDA device: NVIDIA's driver does not start (", reason(nvml, started), "); ", init_remedy(started));
    return system;
  }
  system.driver = nvml_text(nvml.driver_version);
  int version = 0;
  if (nvml.cuda_version != nullptr && nvml.cuda_version(&version) == nvml::kSuccess && version > 0) {
    system.cuda = cat(version / 1000, ".", version % 1000 / 10);
  }
  read_cards(nvml, root, system);
  (void)nvml.shutdown();
  return system;
}

GpuSystem observe_gpus() {
  // The driver's library starts a thread that stays. If it took SIGINT, it would end rp-launch.
  const BlockedSignals blocked;
  try {
    const NvmlLibrary library = NvmlLibrary::open();
    return observe_gpus(library.table());
  } catch (const Error& error) {
    return {.missing = error.what()};
  }
}

}  // namespace rp
