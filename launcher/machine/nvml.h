// launcher/machine/nvml.h
// Loads NVIDIA's management library, which comes with the driver. It is loaded by name at run time,
// so rp-launch links to no library of NVIDIA and starts on machines without one. Signatures: NVML
// API Reference Guide.
#pragma once

#include <memory>

namespace rp {

// The types and constants of the library's binary interface that are used here.
namespace nvml {
using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kNoPermission = 4;
inline constexpr Result kDriverNotLoaded = 9;
inline constexpr Result kGpuIsLost = 15;
inline constexpr Result kVersionMismatch = 18;

using Device = struct OpaqueDevice*;

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct PciInfo {
  char legacy_bus_id[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int device_id;
  unsigned int subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68 && sizeof(Memory) == 24);

inline constexpr unsigned int kTextBytes = 96;  // size of the largest buffer for names and UUIDs
inline constexpr int kExclusiveThread = 1;      // compute modes; 0 is the default
inline constexpr int kProhibited = 2;
inline constexpr int kExclusiveProcess = 3;
}  // namespace nvml

// The functions of the library. Those in the second group are null if the driver is too old for
// them.
struct NvmlTable {
  nvml::Result (*init)() = nullptr;
  nvml::Result (*shutdown)() = nullptr;
  nvml::Result (*device_count)(unsigned int* count) = nullptr;
  nvml::Result (*device_by_index)(unsigned int index, nvml::Device* device) = nullptr;
  nvml::Result (*uuid)(nvml::Device device, char* text, unsigned int length) = nullptr;
  nvml::Result (*name)(nvml::Device device, char* text, unsigned int length) = nullptr;
  nvml::Result (*memory)(nvml::Device device, nvml::Memory* memory) = nullptr;
  nvml::Result (*pci)(nvml::Device device, nvml::PciInfo* info) = nullptr;

  const char* (*error_string)(nvml::Result result) = nullptr;
  nvml::Result (*driver_version)(char* text, unsigned int length) = nullptr;
  nvml::Result (*cuda_version)(int* version) = nullptr;
  nvml::Result (*link_generation)(nvml::Device device, unsigned int* generation) = nullptr;
  nvml::Result (*link_width)(nvml::Device device, unsigned int* width) = nullptr;
  nvml::Result (*most_link_generation)(nvml::Device device, unsigned int* generation) = nullptr;
  nvml::Result (*most_link_width)(nvml::Device device, unsigned int* width) = nullptr;
  nvml::Result (*capability)(nvml::Device device, int* major, int* minor) = nullptr;
  nvml::Result (*compute_mode)(nvml::Device device, int* mode) = nullptr;
  nvml::Result (*mig_mode)(nvml::Device device, unsigned int* current, unsigned int* pending) = nullptr;
  nvml::Result (*most_mig_instances)(nvml::Device device, unsigned int* count) = nullptr;
  nvml::Result (*mig_instance)(nvml::Device device, unsigned int index, nvml::Device* instance) = nullptr;
};

// Owns the loaded library. It must outlive all uses of its table.
class NvmlLibrary {
 public:
  // Throws rp::Error (kNoResource), with a remedy, if the library is not found or lacks a function
  // of the first group.
  [[nodiscard]] static NvmlLibrary open();

  [[nodiscard]] const NvmlTable& table() const { return table_; }

 private:
  NvmlLibrary() = default;

  std::shared_ptr<void> handle_;
  NvmlTable table_;
};

}  // namespace rp
