// kernels/layer_arguments.h
// Arguments of the loops of a transformer's layers, for the CPU's kernels (cpu/layer_kernels.h) and a GPU's
// (gpu_kernels.h).
//
// Arrays are plain and without gaps. Activations and weights are of a working dtype (common/dtype.h) that the call
// names; `element(x)` rounds to it. Arithmetic is fp32; values are rounded once when stored.
#pragma once

#include <cstdint>

#include "kernels/formulas.h"

namespace rp::models {

// y = weight * element(x * rstd), rstd = 1 / sqrt(mean(x^2) + epsilon), for rows of `columns` elements; or as its kind
// says.
struct RmsNormRows {
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
  float* rstd = nullptr;  // one per row, written
  std::int64_t columns = 0;
  float epsilon = 0;
  NormKind kind = NormKind::kRounded;
};

// grad_x of RmsNormRows. The weight's gradient of the rows of the call is added to `grad_weight`, row after row.
struct RmsNormGradRows {
  const void* grad_y = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* rstd = nullptr;
  void* grad_x = nullptr;
  float* grad_weight = nullptr;  // fp32, `columns` elements; null: nobody wants it
  std::int64_t columns = 0;
  NormKind kind = NormKind::kRounded;
};

// Rotates pairs (x[i], x[i + head_size / 2]) of every head by the angle of its position, forwards or back. A row is one
// position of one sequence, [heads, head_size]: row r is position r % sequence.
struct RotateRows {
  const void* x = nullptr;
  void* y = nullptr;
  const float* cosine = nullptr;  // [sequence, head_size / 2]
  const float* sine = nullptr;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
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

// Softmax cross entropy of rows of logits, and z-loss: z_loss * log_sum^2, where log_sum = log(sum of exp(logit)).
// Writes a row's cross entropy, and where `with_gradient` overwrites its logits by the gradient of scale times the sum
// of both: scale * ((1 + 2 * z_loss * log_sum) * softmax - one at the label).
struct CrossEntropyRows {
  void* logits = nullptr;
  const std::int64_t* labels = nullptr;  // one per row, in [0, columns)
  float* losses = nullptr;               // one per row
  std::int64_t columns = 0;
  float scale = 1;
  bool with_gradient = true;
  float z_loss = 0;
  float* log_sums = nullptr;  // one per row, written; null: not wanted
};

// Tiles of attention (models/layers/attention.h). Queries and columns of a tile are a multiple of 16; unused ones are
// zero.

// A window that leaves out nothing.
inline constexpr std::int64_t kWholeWindow = std::int64_t{1} << 40;

// Softmax of a tile of causal scores. Of `columns` columns row r sees those before `first_visible` + r, from
// `first_visible` + r - `window` on.
struct CausalSoftmaxRows {
  float* scores = nullptr;        // [rows, stride], before scaling; overwritten
  void* probabilities = nullptr;  // [rows, stride], written up to `columns`
  float* log_sums = nullptr;      // one per row, written: log of the sum of exp(scale * score) and of exp(sink)
  std::int64_t stride = 0;
  std::int64_t first_visible = 0;
  std::int64_t columns = 0;
  float scale = 1;
  std::int64_t window = kWholeWindow;
  float sink = -__builtin_inff();  // one score more, after scaling; -inf: none
};

// From scores and gradients of probabilities, both transposed, to probabilities and gradients of scores:
//   p = exp(scale * score - log_sum of the query),  grad_score = scale * p * (grad_p - delta of the query)
// Query r sees key c if first_visible + r - window < c <= first_visible + r. Rows are pairs of keys: row i is keys 2i
// and 2i + 1.
struct AttentionGradRows {
  const float* scores = nullptr;  // [keys, queries]
  const float* grads = nullptr;   // [keys, queries]
  const float* log_sums = nullptr;
  const float* deltas = nullptr;
  void* probabilities = nullptr;      // [keys, queries]
  void* grad_scores = nullptr;        // [keys, queries]
  void* grad_scores_pairs = nullptr;  // the same as [keys / 2, queries, 2]; in bf16 only
  std::int64_t queries = 0;
  std::int64_t keys = 0;  // those behind are written as zero
  std::int64_t first_visible = 0;
  float scale = 1;
  std::int64_t window = kWholeWindow;
};

// Rows of a matrix in the order that a product wants for its right-hand side: as they are in fp32; in bf16 pairs of
// rows interleaved, [rows / 2, columns, 2]. `transposed`: the product's right-hand side is the transposed matrix, whose
// rows are these columns: [columns, width] in fp32, [columns / 2, width, 2] in bf16, `width` being the padded number of
// rows. Rows behind the end of the matrix are zero.
struct PackRows {
  const void* from = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // even
  void* to = nullptr;
  std::int64_t width = 0;  // even; rows are padded to this many
  bool transposed = false;
  std::int64_t to_stride = 0;  // where transposed: what stands for `width` in the result's shape; 0: `width`
};

// total += from, in fp32.
struct AddToFloats {
  const void* from = nullptr;
  float* total = nullptr;
};

}  // namespace rp::models
