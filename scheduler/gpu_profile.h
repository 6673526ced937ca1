// scheduler/gpu_profile.h
// What is known of a GPU and of the machine around it: what times of layers and copies are reckoned from. The profiles
// that come with the program are in scheduler/profiles/, each figure with its source; read by
// model_files/profile_file.h.
#pragma once

#include <string>

namespace rp {

// What a GEMM of 16-bit numbers adds up in. The first is faster on GeForce cards and less accurate.
enum class Accumulate { kFp16, kFp32 };

struct GpuProfile {
  std::string name{};
  double memory_gib = 0;
  double usable_share = 0;            // of the memory: the rest is the driver's, the context's and the libraries'
  double fp16_accumulate_tflops = 0;  // peak without sparsity, 16-bit numbers added up in 16 bits
  double fp32_accumulate_tflops = 0;  // likewise, in 32 bits
  double gemm_efficiency = 0;         // of the peak
  double attention_efficiency = 0;    // of the peak with 32-bit sums, which flash attention uses
  double memory_gbs = 0;              // peak, 10^9 bytes a second
  double memory_efficiency = 0;       // of elementwise kernels
  double pcie_generation = 0;
  double pcie_lanes = 0;
  double host_to_device_gbs = 0;  // from registered memory, nothing else on the link
  double device_to_host_gbs = 0;
  double both_directions_gbs = 0;  // each of the two, at once
  double copy_latency_us = 0;      // of each copy, besides

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
  double memory_gbs = 0;               // what copies and the optimizer reach together: bytes read and written
  double optimizer_gbs = 0;            // of the CPU optimizer's pass, 28 bytes a parameter
  double pageable_upload_gbs = 0;      // to one GPU from memory that is not registered
  double pageable_bytes_per_byte = 0;  // through host memory for each byte that such an upload moves
  double gpus_per_root = 0;            // that share a PCIe root port
  double root_gbs = 0;                 // of the port, each direction

  bool operator==(const ServerProfile&) const = default;
};

}  // namespace rp
