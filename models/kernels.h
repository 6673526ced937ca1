// models/kernels.h
// The element-wise and row-wise loops of a transformer on the CPU, each as one pass over memory where a chain of
// LibTorch operators makes five to ten.
//
// A kernel works on a range of rows (or elements) of plain arrays, so that the caller may share a call among threads.
// Results are a function of the inputs alone: sums have a fixed order (16 lanes, then lane by lane), no operation is
// fused, and every instruction set gives the same bits. Arithmetic is fp32; values are rounded once when stored.
#pragma once

#include <cstdint>
#include <span>

namespace rp::models {

// The formats of activations and weights.
enum class Element : std::uint8_t { kBf16, kFp32 };

// y = weight * element(x * rstd), rstd = 1 / sqrt(mean(x^2) + epsilon), for rows of `columns` elements.
struct RmsNormRows {
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
  float* rstd = nullptr;  // one per row, written
  std::int64_t columns = 0;
  float epsilon = 0;
};

// grad_x of RmsNormRows. The weight's gradient of the rows of the call is added to `grad_weight`, row after row.
struct RmsNormGradRows {
  const void* grad_y = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* rstd = nullptr;
  void* grad_x = nullptr;
  float* grad_weight = nullptr;  // fp32, `columns` elements
  std::int64_t columns = 0;
};

// Rotates pairs (x[i], x[i + head_size / 2]) of every head by the angle of its position, forwards or back. A row is one
// position of one sequence: row r is position r % sequence of sequence r / sequence. Strides are in elements.
struct RotateRows {
  const void* x = nullptr;
  void* y = nullptr;
  const float* cosine = nullptr;  // [sequence, head_size / 2]
  const float* sine = nullptr;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
  struct Strides {
    std::int64_t batch = 0;
    std::int64_t position = 0;
    std::int64_t head = 0;
  };
  Strides x_strides;
  Strides y_strides;
  bool back = false;
};

// y = silu(gate) * up, silu(a) = a / (1 + exp(-a)).
struct SwiGlu {
  const void* gate = nullptr;
  const void* up = nullptr;
  void* y = nullptr;
};

struct SwiGluGrad {
  const void* grad_y = nullptr;
  const void* gate = nullptr;
  const void* up = nullptr;
  void* grad_gate = nullptr;
  void* grad_up = nullptr;
};

// Softmax cross entropy of rows of logits. Writes a row's loss, and where `with_gradient` overwrites its logits by
// scale * (softmax - one at the label).
struct CrossEntropyRows {
  void* logits = nullptr;
  const std::int64_t* labels = nullptr;  // one per row, in [0, columns)
  float* losses = nullptr;               // one per row
  std::int64_t columns = 0;
  float scale = 1;
  bool with_gradient = true;
};

// One table per instruction set; `begin` and `end` bound the rows (elements for SwiGlu) of the call.
struct Kernels {
  const char* name;
  void (*rms_norm)(Element, const RmsNormRows&, std::int64_t begin, std::int64_t end);
  void (*rms_norm_grad)(Element, const RmsNormGradRows&, std::int64_t begin, std::int64_t end);
  void (*rotate)(Element, const RotateRows&, std::int64_t begin, std::int64_t end);
  void (*swiglu)(Element, const SwiGlu&, std::int64_t begin, std::int64_t end);
  void (*swiglu_grad)(Element, const SwiGluGrad&, std::int64_t begin, std::int64_t end);
  void (*cross_entropy)(Element, const CrossEntropyRows&, std::int64_t begin, std::int64_t end);
};

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;    // these two on x86-64 only
extern const Kernels kAvx512Kernels;

// The fastest table that this processor can run.
[[nodiscard]] const Kernels& kernels();

// All tables that this processor can run, the portable one first.
[[nodiscard]] std::span<const Kernels* const> usable_kernels();

}  // namespace rp::models
