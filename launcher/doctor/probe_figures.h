// launcher/doctor/probe_figures.h
// Holds the results of rp-probe for one GPU, and converts them to and from the line of JSON that
// rp-probe prints.
#pragma once

#include <string>

namespace rp {

// Bandwidths in GB/s are in units of 10^9 bytes per second.
struct ProbeFigures {
  double host_to_device_gbs = 0;  // of long copies from registered memory
  double device_to_host_gbs = 0;
  double both_directions_gbs = 0;           // each direction, while both are active
  double copy_latency_us = 0;               // from the start of a copy of a few bytes to its completion
  double register_s_per_gib = 0;            // page-locking a writable shared mapping, as for gradients
  double register_read_only_s_per_gib = 0;  // page-locking a read-only one, as for weights
  double memory_gib = 0;                    // memory of the GPU as reported by CUDA
  double usable_gib = 0;                    // the part that is free after the context was made
  bool huge_pages = false;                  // the registered memory had huge pages
  int copy_engines = 0;                     // number of copies that the GPU can run concurrently
  bool has_word_operations = false;         // its streams can wait for and write 64-bit words in host memory
  bool registers_read_only = false;         // the driver can register read-only memory
  bool has_unified_addressing = false;      // an address alone shows whether it is in host or GPU memory
  // The following figures are measured only with --products; 0: not measured.
  double bf16_tflops = 0;             // 10^12 operations per second in matrix products, with sums in fp32
  double fp16_tflops = 0;             // the same for fp16 products, with sums in fp32
  double fp16_accumulate_tflops = 0;  // fp16 products with sums in fp16
  double tf32_tflops = 0;             // products of fp32 numbers that are rounded to tf32
  double memory_gbs = 0;              // bytes read plus bytes written, by copies inside the GPU's memory
  std::string products_problem{};     // why products could not be measured; else empty
  bool operator==(const ProbeFigures&) const = default;
};

// The figures that are measured with --products.
inline constexpr double ProbeFigures::*kProductFigures[] = {&ProbeFigures::bf16_tflops, &ProbeFigures::fp16_tflops,
                                                            &ProbeFigures::fp16_accumulate_tflops,
                                                            &ProbeFigures::tf32_tflops, &ProbeFigures::memory_gbs};

[[nodiscard]] std::string probe_line(const ProbeFigures& figures);
// Parses a line of rp-probe. Throws rp::Error (kLauncherFailed) if the line is invalid.
[[nodiscard]] ProbeFigures parse_probe_line(const std::string& line);

}  // namespace rp
