// scheduler/gpu_profile.h
// The figures of a GPU, of the machine around it, from which the times of layers and copies are
// computed. The profiles that come with the program are in scheduler/profiles/, each figure with
// its source; model_files/profile_file.h reads them.
#pragma once

#include <string>

namespace rp {

// The precision in which a GEMM of 16-bit numbers accumulates. kFp16 is faster on GeForce cards and
// less accurate.
enum class Accumulate { kFp16, kFp32 };

struct GpuProfile {
  std::string name{};
  double memory_gib = 0;
  double usable_share = 0;            // of the memory; the rest is used by the driver, the context and libraries
  double fp16_accumulate_tflops = 0;  // peak without sparsity, 16-bit numbers, sums in 16 bits
  double fp32_accumulate_tflops = 0;  // peak without sparsity, 16-bit numbers, sums in 32 bits
  double gemm_efficiency = 0;         // share of the peak that is reached
  double attention_efficiency = 0;    // share of the peak with 32-bit sums, which flash attention uses
  double memory_gbs = 0;              // peak, 10^9 bytes per second
  double memory_efficiency = 0;       // share of the peak that elementwise kernels reach
  double pcie_generation = 0;
  double pcie_lanes = 0;
  double host_to_device_gbs = 0;  // from registered memory, with nothing else on the link
  double device_to_host_gbs = 0;
  double both_directions_gbs = 0;  // of each direction while both are in use
  double copy_latency_us = 0;      // of each copy, in addition to the time of its bytes

  [[nodiscard]] double peak_tflops(Accumulate accumulate) const {
    return accumulate == Accumulate::kFp16 ? fp16_accumulate_tflops : fp32_accumulate_tflops;
  }
  [[nodiscard]] double usable_bytes() const { return memory_gib * usable_share * 1073741824.0; }
  bool operator==(const GpuProfile&) const = default;
};

struct ServerProfile {
  std::string name{};
  double num_gpus = 0;
  double memory_gib = 0;
  double memory_gbs = 0;               // reached by copies and the optimizer together: bytes read and written
  double optimizer_gbs = 0;            // of the CPU optimizer's pass, which moves 28 bytes per parameter
  double pageable_upload_gbs = 0;      // to one GPU from memory that is not registered
  double pageable_bytes_per_byte = 0;  // bytes through host memory for each byte of such an upload
  double gpus_per_root = 0;            // GPUs that share a PCIe root port
  double root_gbs = 0;                 // of such a port, in each direction

  bool operator==(const ServerProfile&) const = default;
};

}  // namespace rp
