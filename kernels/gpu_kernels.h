// kernels/gpu_kernels.h
// The operations of a transformer on a GPU as a table of functions, so that this library needs no
// CUDA. The CUDA plug-in installs the table when it is loaded (kernels/cuda defines the functions),
// and models/layers/ops.h uses it for tensors on a GPU.
//
// All pointers point to GPU memory, rows follow each other without gaps, and the memory of
// different arguments does not overlap unless stated otherwise. Every function enqueues its work on
// `stream` (a cudaStream_t) and returns without waiting for it. It throws rp::Error (kNoResource)
// if the work cannot be enqueued. A count of 0 is allowed.
//
// The dtype of a call is a working dtype (common/dtype.h); any other is a broken invariant and
// aborts.
//
// The formulae are those of layer_arguments.h: fp32 arithmetic, with values rounded once when
// stored. So results differ from the CPU's only by the order of sums and the last places of exp and
// log. They depend on the inputs alone, not on addresses, streams or the number of the GPU's
// processors: sums have a fixed order, and nothing is added atomically. NaNs stay NaNs, with any
// bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/dtype.h"
#include "kernels/delta_arguments.h"
#include "kernels/layer_arguments.h"
#include "kernels/quantised_weights.h"

namespace rp::models {

// sum = element(x + residual), then RmsNormRows for `sum`. `sum` may be `x` or `residual`.
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

// grad_x of RmsNormRows, plus `grad_sum` if that is not null: then it is the gradient of x and
// residual of AddRmsNormRows, whose `sum` is `x` here. `grad_weight` is overwritten by the sum over
// all rows.
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

// Returns the number of rows whose weight gradients one block of threads adds: the number that
// leaves two blocks for each of 170 multiprocessors, as the largest consumer card has, and at most
// 16. It depends on the number of rows only, so that all GPUs add in the same order.
inline constexpr std::int64_t rows_per_sum(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / std::int64_t{2 * 170}, 1, 16);
}
inline constexpr std::int64_t num_row_sums(std::int64_t rows) {
  return (rows + rows_per_sum(rows) - 1) / rows_per_sum(rows);
}

// RotaryTable of models/layers/ops.h: cosine and sine of row * frequency, each times `factor`,
// rounded to the element type and stored as fp32.
struct RotaryAngles {
  const float* frequencies = nullptr;  // [half]
  float* cosine = nullptr;             // [length, half]
  float* sine = nullptr;
  std::int64_t length = 0;
  std::int64_t half = 0;
  float factor = 1;
};

// The label of a token that is not trained.
inline constexpr std::int64_t kIgnoredLabel = -100;

// CrossEntropyRows with the scale 1 / divisor. The divisor is read from GPU memory and rounded to
// fp32, as on the CPU. A row with kIgnoredLabel has loss 0, log_sum 0 and gradient 0. A row with
// another label outside [0, columns) has loss NaN and gradient 0. If the divisor is not positive,
// all gradients are 0. (Code on the GPU cannot throw.)
struct GpuCrossEntropyRows {
  void* logits = nullptr;  // overwritten by their gradient if `with_gradient`
  const std::int64_t* labels = nullptr;
  float* losses = nullptr;          // one per row, written, not divided
  const double* divisor = nullptr;  // null: 1
  std::int64_t columns = 0;
  bool with_gradient = true;
  float z_loss = 0;
  float* log_sums = nullptr;  // one per row, written; null: not needed
};

// total = float(sum of losses in fp64 / divisor); NaN if the divisor is not positive.
struct LossSum {
  const float* losses = nullptr;
  std::int64_t count = 0;
  const double* divisor = nullptr;
  float* total = nullptr;
};

// values[i] = element(values[i] * factor). Memory is not touched if the factor is 1.
struct ScaleElements {
  void* values = nullptr;
  std::int64_t count = 0;
  const float* factor = nullptr;
};

// The end of a stage's backward: `to` = element(from), and the sum of the squares of the rounded
// values in fp64. (The squares of 16 bytes of values are first added in fp32, unless they leave its
// range.) The sum is infinite or NaN exactly if one of the rounded values is.
struct RoundGradient {
  const float* from = nullptr;
  void* to = nullptr;  // may be `from` in fp32
  std::int64_t count = 0;
  double* partial_sums = nullptr;  // scratch: num_square_sums(count) elements
  double* squares = nullptr;       // one, written
};

// The number of elements whose squares one block of threads adds.
inline constexpr std::int64_t kGpuElementsPerSum = 16384;
inline constexpr std::int64_t num_square_sums(std::int64_t count) {
  return (count + kGpuElementsPerSum - 1) / kGpuElementsPerSum;
}

// y[i] = weight[ids[i]], or a row of NaNs if the id is outside the vocabulary.
struct EmbedRows {
  const void* weight = nullptr;  // [vocabulary, columns]
  const std::int64_t* ids = nullptr;
  void* y = nullptr;  // [count, columns]
  std::int64_t vocabulary = 0;
  std::int64_t columns = 0;
};

// For each distinct id, the rows of grad_y at its places are added in fp32, starting from 0, in
// order of place. The sum is added to the id's row of `grad_weight`; other rows are not touched.
// `padding_id` and ids outside the vocabulary are ignored.
struct EmbedGradRows {
  const void* grad_y = nullptr;              // [count, columns]
  const std::int64_t* sorted_ids = nullptr;  // ascending
  const std::int64_t* places = nullptr;      // the row of grad_y of each id; ascending among equal ids
  float* grad_weight = nullptr;              // [vocabulary, columns]
  std::int64_t vocabulary = 0;
  std::int64_t columns = 0;
  std::int64_t padding_id = -1;
};

// Prepares rows, sorted by expert, for any number of products. The assignment of rows to experts
// stays on the GPU.
struct ExpertRows {
  // [experts]. If counts are wrong, some rows have no expert or another one, but all accesses stay
  // in the arrays.
  const std::int64_t* counts = nullptr;
  std::int64_t* plan = nullptr;  // [expert_plan_size(rows, experts)], written: each expert's first row, then tiles
  std::int64_t rows = 0;
  std::int64_t experts = 0;
};

// Rows and columns of a result that a block of threads computes at a time. The last tile of an
// expert may have fewer rows.
inline constexpr std::int64_t kRowsOfTile = 128;
inline constexpr std::int64_t num_row_tiles(std::int64_t rows, std::int64_t experts) {
  return rows / kRowsOfTile + experts;
}
inline constexpr std::int64_t expert_plan_size(std::int64_t rows, std::int64_t experts) {
  return experts + 1 + num_row_tiles(rows, experts);
}

// Products over experts. Sums are in fp32, in order along the depth. The three functions use these
// arguments:
//   grouped_linear       result[i] = rows_in[i] weight[expert of i]^T; rows_in [rows, inputs]
//   grouped_linear_grad  result[i] = rows_in[i] weight[expert of i]; rows_in [rows, outputs]
//   grouped_weight_grad  result[e] = the sum over the rows of e of rows_in[i]^T other_rows_in[i], [outputs] x [inputs];
//                        or the same added to `add_to`. Experts without rows: zeros, or not touched.
// Rows after those of the last expert are not touched.
struct GroupedProduct {
  const void* rows_in = nullptr;
  const void* other_rows_in = nullptr;
  const void* weight = nullptr;  // [experts, outputs, inputs]
  void* result = nullptr;
  float* add_to = nullptr;             // fp32, of weight's shape; replaces `result`
  const std::int64_t* plan = nullptr;  // of ExpertRows
  std::int64_t rows = 0;
  std::int64_t experts = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
};

struct GpuKernels {
  // True if the table also accepts tensors of the CPU. Only the tests' emulation does; then
  // models/layers/ops.h calls it for all tensors.
  bool takes_cpu_memory = false;
  // True if at::_grouped_mm of bf16 reads the numbers of rows on this process's GPU itself.
  // Otherwise it copies them to the host at every call.
  bool libtorch_groups_bf16 = false;
  // Returns LibTorch's current stream of the calling thread.
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
  // Writes the values of a quantised parameter, [matrices, rows, columns], with the bits that the
  // CPU computes.
  void (*expand_weights)(DType, const QuantisedWeights&, void* values, void* stream) = nullptr;
  void (*convolution)(DType, const GpuConvolution&, void* stream) = nullptr;
  void (*convolution_grad)(DType, const GpuConvolutionGrad&, void* stream) = nullptr;
  void (*gated_norm)(DType, const GpuGatedNorm&, std::int64_t rows, void* stream) = nullptr;
  void (*gated_norm_grad)(DType, const GpuGatedNormGrad&, std::int64_t rows, void* stream) = nullptr;
  void (*delta_rule)(DType, const GpuDeltaRule&, void* stream) = nullptr;
  void (*delta_rule_grad)(DType, const GpuDeltaRuleGrad&, void* stream) = nullptr;
};

// Installs the table of this process, which must outlive all calls; null removes it. The plug-in
// calls this when it is loaded, before any thread computes.
void set_gpu_kernels(const GpuKernels* kernels);

// Returns the installed table. Throws rp::Error (kNoResource) if there is none.
[[nodiscard]] const GpuKernels& gpu_kernels();

// Returns true if a table is installed that also accepts tensors of the CPU.
[[nodiscard]] bool gpu_kernels_take_cpu_memory();

}  // namespace rp::models
