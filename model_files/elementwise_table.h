// model_files/elementwise_table.h
// Traffic of elementwise operations through GPU memory.
#pragma once

namespace rp {

// How often elementwise operations pass their data through GPU memory.
enum class Elementwise {
  kFused,  // one pass for each RMSNorm, rotary embedding, SwiGLU, sum: as in models/
  kEager,  // each operation of transformers' layers separately: the published runs
};

// The bytes read from and written to GPU memory per element, where an activation has e bytes.
// docs/design/cost-model.md derives each number.
struct ElementwiseTable {
  double norm_forward = 0, norm_backward = 0;      // RMSNorm, per element of its input
  double rotary_forward = 0, rotary_backward = 0;  // per element of queries and keys
  double glu_forward = 0, glu_backward = 0;        // per element of the intermediate width
  // Gather and weighted scatter, per element of the hidden width and expert that a token uses.
  double expert_forward = 0, expert_backward = 0;
  double convolution_forward = 0, convolution_backward = 0;  // with its activation, per channel
  double pass = 0;                                           // one reading or writing of an activation
};

[[nodiscard]] constexpr ElementwiseTable elementwise_table(Elementwise kind, double e) {
  if (kind == Elementwise::kFused) {
    return {.norm_forward = 2 * e,
            .norm_backward = 3 * e,
            .rotary_forward = 2 * e,
            .rotary_backward = 2 * e,
            .glu_forward = 3 * e,
            .glu_backward = 5 * e,
            .expert_forward = 5 * e,
            .expert_backward = 5 * e,
            .convolution_forward = 2 * e,
            .convolution_backward = 3 * e,
            .pass = e};
  }
  return {.norm_forward = 28 + 4 * e,
          .norm_backward = 60 + 8 * e,
          .rotary_forward = 10 * e,
          .rotary_backward = 15 * e,
          .glu_forward = 5 * e,
          .glu_backward = 9 * e,
          .expert_forward = 7 * e,
          .expert_backward = 9 * e,
          .convolution_forward = 4 * e,
          .convolution_backward = 6 * e,
          .pass = 5 * e};
}

}  // namespace rp
