// model_files/mixer_cost.h
// Computes what the part of a decoder layer costs in which tokens exchange data, except for its
// linear layers. docs/design/cost-model.md has the formulas.
#pragma once

#include <cstdint>

#include "model_files/config/model_config.h"
#include "model_files/elementwise_table.h"

namespace rp {

// The cost of attention, of latent attention or of a gated delta rule. All but the FLOPs are per token.
struct MixerCost {
  double forward_flops = 0, backward_flops = 0;      // of one sequence
  double forward_bytes = 0, backward_bytes = 0;      // of elementwise operations
  double saved_elements = 0;                         // activations that autograd keeps
  double saved_numbers = 0;                          // fp32 numbers that autograd keeps
  double forward_width = 0, backward_width = 0;      // elements of workspace
  double forward_numbers = 0, backward_numbers = 0;  // fp32 numbers of workspace
  // Workspace that does not depend on the number of tokens: scores, in fp32 and in the activations' dtype.
  double forward_scores = 0, backward_scores = 0;
};

// Returns the cost for sequences of this length.
[[nodiscard]] MixerCost mixer_cost(const DecoderLayerConfig& layer, const ElementwiseTable& table,
                                   std::int64_t sequence_length);

}  // namespace rp
