// launcher/doctor/probe_figures.h
// What rp-probe measures on one GPU, and the line of JSON in which it says so.
#pragma once

#include <string>

namespace rp {

// GB/s are 10^9 bytes a second.
struct ProbeFigures {
  double host_to_device_gbs = 0;  // of long copies from registered memory
  double device_to_host_gbs = 0;
  double both_directions_gbs = 0;  // of each of the two at once
  double copy_latency_us = 0;      // from the start of a copy of a few bytes to its completion
  double register_s_per_gib = 0;   // of page-locking a shared mapping for the GPU, as a worker has it of gradients
  double register_read_only_s_per_gib =
      0;                             // likewise of one that this process may only read, as a worker has it of weights
  double memory_gib = 0;             // of the GPU, by CUDA
  double usable_gib = 0;             // of it, that is free beside the context
  bool huge_pages = false;           // whether the registered memory had them
  int copy_engines = 0;              // copies that the GPU makes at once
  bool has_word_operations = false;  // its streams wait for words of the host's memory and write them, of 64 bits
  bool registers_read_only = false;  // the driver registers memory that a process may only read
  bool has_unified_addressing = false;  // host and GPU memory are told apart by their addresses
  // Only where it was asked for; 0: not measured.
  double bf16_tflops = 0;             // 10^12 operations a second in matrix products, added up in 32 bits
  double fp16_tflops = 0;             // likewise
  double fp16_accumulate_tflops = 0;  // added up in 16 bits
  double tf32_tflops = 0;             // of 32-bit numbers, rounded to tf32
  double memory_gbs = 0;              // read and written by copies inside the GPU's memory
  std::string products_problem{};     // why there are no figures of products
  bool operator==(const ProbeFigures&) const = default;
};

// Those of --products.
inline constexpr double ProbeFigures::*kProductFigures[] = {&ProbeFigures::bf16_tflops, &ProbeFigures::fp16_tflops,
                                                            &ProbeFigures::fp16_accumulate_tflops,
                                                            &ProbeFigures::tf32_tflops, &ProbeFigures::memory_gbs};

[[nodiscard]] std::string probe_line(const ProbeFigures& figures);
// Throws rp::Error (kLauncherFailed) for a line that is none.
[[nodiscard]] ProbeFigures parse_probe_line(const std::string& line);

}  // namespace rp
