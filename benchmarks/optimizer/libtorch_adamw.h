// benchmarks/optimizer/libtorch_adamw.h
// Calls LibTorch's fused AdamW and its two casts, for comparison with ours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rp {

struct AdamWArrays {
  std::size_t n = 0;
  std::uint16_t* gradient = nullptr;  // bf16
  float* gradient_fp32 = nullptr;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  std::uint16_t* working = nullptr;  // bf16
};

// Takes one step with `num_threads` threads.
void libtorch_adamw(const AdamWArrays& arrays, int num_threads);

}  // namespace rp
