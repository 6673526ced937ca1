// kernels/gpu_kernels.h
// The operations of a transformer on a GPU as a table of functions, so that this library needs no CUDA: the CUDA
// plug-in installs the table when it is loaded (kernels/cuda fills it), and models/layers/ops.h goes by where its
// tensors are.
//
// All pointers are to the GPU's memory, rows follow each other without gaps, and memory of different arguments does not
// overlap unless a call says so. Every function enqueues its work on `stream` (a cudaStream_t) and returns without
// waiting for it; it throws rp::Error (kNoResource) if the work cannot be enqueued. A count of 0 is allowed.
//
// A call's dtype is a working one (common/dtype.h); any other is a broken invariant and aborts.
//
// Formulae are those of layer_arguments.h: fp32 arithmetic, values rounded once when stored, so results differ from the
// CPU's by the order of sums and the last places of exp and log. They depend on the inputs alone, not on addresses,
// streams or the number of processors of the GPU: sums have a fixed order, and nothing is added atomically. NaNs stay
// NaNs, of any bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/dtype.h"
#include "kernels/layer_arguments.h"

namespace rp::models {

// sum = element(x + residual), then RmsNormRows of `sum`. `sum` may be `x` or `residual`.
struct AddRmsNormRows {
  const void* x = nullptr;
  const void* residual = nullptr;
  const void* weight = nullptr;
  void* sum = nullptr;
  void* y = nullptr;
  float* rstd = nullptr;  // one per row, written
  std::int64_t columns = 0;
  float epsilon = 0;
  NormKind kind = NormKind::kRounded;
};

// grad_x of RmsNormRows, plus `grad_sum` where that is given: then it is the gradient of x and of residual of
// AddRmsNormRows (whose `sum` is `x` here). `grad_weight` is overwritten by the sum over all rows.
struct GpuRmsNormGradRows {
  const void* grad_y = nullptr;
  const void* grad_sum = nullptr;  // or null
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* rstd = nullptr;
  void* grad_x = nullptr;
  float* grad_weight = nullptr;   // fp32, `columns` elements
  float* partial_sums = nullptr;  // scratch: num_row_sums(rows) * columns elements
  std::int64_t columns = 0;
  NormKind kind = NormKind::kRounded;
};

// Rows whose weight gradients one block of threads adds: as many as leave two blocks to each of 170 multiprocessors,
// which is what the largest card for consumers has, and at most 16. By the number of rows alone, so that every GPU adds
// alike.
inline constexpr std::int64_t rows_per_sum(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / std::int64_t{2 * 170}, 1, 16);
}
inline constexpr std::int64_t num_row_sums(std::int64_t rows) {
  return (rows + rows_per_sum(rows) - 1) / rows_per_sum(rows);
}

// RotaryTable of models/layers/ops.h: cosine and sine of row * frequency, each times `factor`, rounded to the element,
// kept as fp32.
struct RotaryAngles {
  const float* frequencies = nullptr;  // [half]
  float* cosine = nullptr;             // [length, half]
  float* sine = nullptr;
  std::int64_t length = 0;
  std::int64_t half = 0;
  float factor = 1;
};

// A label of a token that is not trained.
inline constexpr std::int64_t kIgnoredLabel = -100;

// CrossEntropyRows with the scale 1 / divisor, the divisor being in the GPU's memory (in fp32, as on the CPU). A row
// with kIgnoredLabel has loss 0, log_sum 0 and gradient 0. One with another label outside [0, columns) has loss NaN and
// gradient 0, and if the divisor is not positive all gradients are 0: nothing on the GPU can throw.
struct GpuCrossEntropyRows {
  void* logits = nullptr;  // overwritten by their gradient where `with_gradient`
  const std::int64_t* labels = nullptr;
  float* losses = nullptr;          // one per row, written, not divided
  const double* divisor = nullptr;  // null: 1
  std::int64_t columns = 0;
  bool with_gradient = true;
  float z_loss = 0;
  float* log_sums = nullptr;  // one per row, written; null: not wanted
};

// total = float(sum of losses in fp64 / divisor); NaN if the divisor is not positive.
struct LossSum {
  const float* losses = nullptr;
  std::int64_t count = 0;
  const double* divisor = nullptr;
  float* total = nullptr;
};

// values[i] = element(values[i] * factor); memory is not touched if the factor is 1.
struct ScaleElements {
  void* values = nullptr;
  std::int64_t count = 0;
  const float* factor = nullptr;
};

// The end of a stage's backward: `to` = element(from), and the sum of the squares of the rounded values in fp64 (the
// squares of 16 bytes of values are first added in fp32, unless they leave its range). That sum is infinite or NaN
// exactly if one of the rounded values is.
struct RoundGradient {
  const float* from = nullptr;
  void* to = nullptr;  // may be `from` in fp32
  std::int64_t count = 0;
  double* partial_sums = nullptr;  // scratch: num_square_sums(count) elements
  double* squares = nullptr;       // one, written
};

// Elements whose squares one block of threads adds.
inline constexpr std::int64_t kGpuElementsPerSum = 16384;
inline constexpr std::int64_t num_square_sums(std::int64_t count) {
  return (count + kGpuElementsPerSum - 1) / kGpuElementsPerSum;
}

// y[i] = weight[ids[i]]; a row of NaNs where the id is outside the vocabulary.
struct EmbedRows {
  const void* weight = nullptr;  // [vocabulary, columns]
  const std::int64_t* ids = nullptr;
  void* y = nullptr;  // [count, columns]
  std::int64_t vocabulary = 0;
  std::int64_t columns = 0;
};

// For each distinct id: the rows of grad_y at its places, added in order of place in fp32 from 0, are added to its row
// of `grad_weight`; other rows are not touched. `padding_id` and ids outside the vocabulary get nothing.
struct EmbedGradRows {
  const void* grad_y = nullptr;              // [count, columns]
  const std::int64_t* sorted_ids = nullptr;  // ascending
  const std::int64_t* places = nullptr;      // the row of grad_y of each; ascending among equal ids
  float* grad_weight = nullptr;              // [vocabulary, columns]
  std::int64_t vocabulary = 0;
  std::int64_t columns = 0;
  std::int64_t padding_id = -1;
};

// Rows sorted by expert, prepared for any number of products with them: which rows are whose stays on the GPU.
struct ExpertRows {
  const std::int64_t* counts =
      nullptr;                   // [experts]; if wrong, some rows get no or another expert, all inside the arrays
  std::int64_t* plan = nullptr;  // [expert_plan_size(rows, experts)], written: each expert's first row, then tiles
  std::int64_t rows = 0;
  std::int64_t experts = 0;
};

// Rows and columns of a result that a block of threads makes at a time. An expert's last tile may have fewer rows.
inline constexpr std::int64_t kRowsOfTile = 128;
inline constexpr std::int64_t num_row_tiles(std::int64_t rows, std::int64_t experts) {
  return rows / kRowsOfTile + experts;
}
inline constexpr std::int64_t expert_plan_size(std::int64_t rows, std::int64_t experts) {
  return experts + 1 + num_row_tiles(rows, experts);
}

// Products over experts, with sums in fp32 in order along the depth. Each of the three functions says what it takes:
//   grouped_linear       result[i] = rows_in[i] weight[expert of i]^T; rows_in [rows, inputs]
//   grouped_linear_grad  result[i] = rows_in[i] weight[expert of i]; rows_in [rows, outputs]
//   grouped_weight_grad  result[e] = the sum over its rows of rows_in[i]^T other_rows_in[i], [outputs] x [inputs]; or
//   added to
//                        `add_to`. Experts without rows: zeros, or not touched.
// Rows behind the last expert's are not touched.
struct GroupedProduct {
  const void* rows_in = nullptr;
  const void* other_rows_in = nullptr;
  const void* weight = nullptr;  // [experts, outputs, inputs]
  void* result = nullptr;
  float* add_to = nullptr;             // fp32, of weight's shape; instead of `result`
  const std::int64_t* plan = nullptr;  // of ExpertRows
  std::int64_t rows = 0;
  std::int64_t experts = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
};

struct GpuKernels {
  // Whether the table also takes tensors of the CPU. Only the tests' emulation does; then models/layers/ops.h sends it
  // all tensors.
  bool takes_cpu_memory = false;
  // Whether at::_grouped_mm of bf16 reads the numbers of rows on this process's GPU itself. Elsewhere it copies them to
  // the host at every call.
  bool libtorch_groups_bf16 = false;
  // LibTorch's stream of the calling thread.
  void* (*current_stream)() = nullptr;
  void (*rms_norm)(DType, const RmsNormRows&, std::int64_t rows, void* stream) = nullptr;
  void (*add_rms_norm)(DType, const AddRmsNormRows&, std::int64_t rows, void* stream) = nullptr;
  void (*rms_norm_grad)(DType, const GpuRmsNormGradRows&, std::int64_t rows, void* stream) = nullptr;
  void (*rotary_table)(DType, const RotaryAngles&, void* stream) = nullptr;
  void (*rotate)(DType, const RotateRows&, std::int64_t rows, void* stream) = nullptr;  // y may be x
  void (*glu)(DType, const Glu&, std::int64_t count, void* stream) = nullptr;
  // grad_gate and grad_up may each be one of the inputs.
  void (*glu_grad)(DType, const GluGrad&, std::int64_t count, void* stream) = nullptr;
  void (*cross_entropy)(DType, const GpuCrossEntropyRows&, std::int64_t rows, void* stream) = nullptr;
  void (*sum_losses)(const LossSum&, void* stream) = nullptr;
  void (*scale)(DType, const ScaleElements&, void* stream) = nullptr;
  void (*round_gradient)(DType, const RoundGradient&, void* stream) = nullptr;
  void (*embed)(DType, const EmbedRows&, std::int64_t count, void* stream) = nullptr;
  void (*embed_grad)(DType, const EmbedGradRows&, std::int64_t count, void* stream) = nullptr;
  void (*plan_experts)(const ExpertRows&, void* stream) = nullptr;
  void (*grouped_linear)(DType, const GroupedProduct&, void* stream) = nullptr;
  void (*grouped_linear_grad)(DType, const GroupedProduct&, void* stream) = nullptr;
  void (*grouped_weight_grad)(DType, const GroupedProduct&, void* stream) = nullptr;
};

// Installs the table of this process, which must outlive all calls; null takes it away. Called by the plug-in when it
// is loaded, before any thread computes.
void set_gpu_kernels(const GpuKernels* kernels);

// The installed table. Throws rp::Error (kNoResource) if there is none.
[[nodiscard]] const GpuKernels& gpu_kernels();

// Whether a table is installed that also takes tensors of the CPU.
[[nodiscard]] bool gpu_kernels_take_cpu_memory();

}  // namespace rp::models
