// kernels/layer_arguments.h
// Arguments of the loops of transformer layers, for the kernels of the CPU (cpu/layer_kernels.h)
// and of GPUs (gpu_kernels.h).
//
// Arrays are plain and without gaps. Activations and weights have a working dtype (common/dtype.h),
// which is an argument of the call; `element(x)` rounds to it. Arithmetic is fp32; values are
// rounded once when stored.
#pragma once

#include <cstdint>

#include "kernels/formulas.h"

namespace rp::models {

// y = weight * element(x * rstd), rstd = 1 / sqrt(mean(x^2) + epsilon), for rows of `columns`
// elements; for other kinds the formula of NormKind.
struct RmsNormRows {
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
  float* rstd = nullptr;  // one per row, written
  std::int64_t columns = 0;
  float epsilon = 0;
  NormKind kind = NormKind::kRounded;
};

// grad_x of RmsNormRows. The weight's gradient for the rows of the call is added to `grad_weight`,
// row by row.
struct RmsNormGradRows {
  const void* grad_y = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* rstd = nullptr;
  void* grad_x = nullptr;
  float* grad_weight = nullptr;  // fp32, `columns` elements; null: not needed
  std::int64_t columns = 0;
  NormKind kind = NormKind::kRounded;
};

// Rotates pairs (x[i], x[i + rotated / 2]) of every head by the angle of its position, forwards or
// back. A row is one position of one sequence, [heads, head_size]; row r is position r % sequence.
// Elements of a head from `rotated` on are copied.
struct RotateRows {
  const void* x = nullptr;
  void* y = nullptr;
  const float* cosine = nullptr;  // [sequence, rotated / 2]
  const float* sine = nullptr;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
  std::int64_t rotated = 0;  // even, at most head_size
  bool back = false;
};

// A gated linear unit.
struct Glu {
  const void* gate = nullptr;
  const void* up = nullptr;
  void* y = nullptr;
  Activation activation = Activation::kSilu;
};

struct GluGrad {
  const void* grad_y = nullptr;
  const void* gate = nullptr;
  const void* up = nullptr;
  void* grad_gate = nullptr;
  void* grad_up = nullptr;
  Activation activation = Activation::kSilu;
};

// Softmax cross entropy of rows of logits, and z-loss: z_loss * log_sum^2, where log_sum = log(sum
// of exp(logit)). Writes each row's cross entropy. If `with_gradient`, it also overwrites the
// logits with the gradient of scale times the sum of both: scale * ((1 + 2 * z_loss * log_sum) *
// softmax - one at the label).
struct CrossEntropyRows {
  void* logits = nullptr;
  const std::int64_t* labels = nullptr;  // one per row, in [0, columns)
  float* losses = nullptr;               // one per row
  std::int64_t columns = 0;
  float scale = 1;
  bool with_gradient = true;
  float z_loss = 0;
  float* log_sums = nullptr;  // one per row, written; null: not needed
};

// Tiles of attention (models/layers/attention/attention.h). The numbers of queries and columns of a tile are
// multiples of 16; unused ones are zero.

// A window that excludes no position.
inline constexpr std::int64_t kWholeWindow = std::int64_t{1} << 40;

// Softmax of a tile of causal scores. Row r sees the columns before `first_visible` + r, starting
// at `first_visible` + r - `window`, out of `columns` columns.
struct CausalSoftmaxRows {
  float* scores = nullptr;        // [rows, stride], before scaling; overwritten
  void* probabilities = nullptr;  // [rows, stride], written up to `columns`
  float* log_sums = nullptr;      // one per row, written: log of the sum of exp(scale * score) and of exp(sink)
  std::int64_t stride = 0;
  std::int64_t first_visible = 0;
  std::int64_t columns = 0;
  float scale = 1;
  std::int64_t window = kWholeWindow;
  float sink = -__builtin_inff();  // an additional score, after scaling; -inf: none
};

// Computes probabilities and gradients of scores from scores and gradients of probabilities, all
// transposed:
//   p = exp(scale * score - log_sum of the query),  grad_score = scale * p * (grad_p - delta of the query)
// Query r sees key c if first_visible + r - window < c <= first_visible + r. The rows of a call are
// pairs of keys: row i is keys 2i and 2i + 1.
struct AttentionGradRows {
  const float* scores = nullptr;  // [keys, queries]
  const float* grads = nullptr;   // [keys, queries]
  const float* log_sums = nullptr;
  const float* deltas = nullptr;
  void* probabilities = nullptr;      // [keys, queries]
  void* grad_scores = nullptr;        // [keys, queries]
  void* grad_scores_pairs = nullptr;  // the same as [keys / 2, queries, 2]; in bf16 only
  std::int64_t queries = 0;
  std::int64_t keys = 0;  // rows after these are written as zero
  std::int64_t first_visible = 0;
  float scale = 1;
  std::int64_t window = kWholeWindow;
};

// Rows of a matrix in the layout that a product needs for its right-hand side. In fp32 they are
// unchanged; in bf16 pairs of rows are interleaved, [rows / 2, columns, 2]. `transposed`: the
// product's right-hand side is the transposed matrix, whose rows are these columns: [columns,
// width] in fp32, [columns / 2, width, 2] in bf16, where `width` is the padded number of rows. Rows
// after the end of the matrix are zero.
struct PackRows {
  const void* from = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // even
  void* to = nullptr;
  std::int64_t width = 0;  // even; rows are padded to this many
  bool transposed = false;
  std::int64_t to_stride = 0;  // if transposed: replaces `width` in the result's shape; 0: `width`
};

// total += from, in fp32.
struct AddToFloats {
  const void* from = nullptr;
  float* total = nullptr;
};

}  // namespace rp::models
