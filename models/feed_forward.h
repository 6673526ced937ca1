// models/feed_forward.h
// The part of a decoder layer that treats each token alone: an MLP, or a mixture of experts.
//
// Shapes: b sequences, t positions, h hidden size.
#pragma once

#include <memory>

#include "model_files/config/model_config.h"
#include "models/layer_parameters.h"
#include "models/layers/experts.h"
#include "models/token_mixer.h"

namespace rp::models {

// Computes the part of one decoder layer that treats each token alone.
class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // Computes x [b, t, h] -> [b, t, h], and the balance of the experts, if there are any. `sum_bth`:
  // the residual sum before the norm that gives x. In a recompute the output may be left out if `is_read` is false:
  // then nothing but a sum, whose backward pass does not need it, may read it.
  [[nodiscard]] virtual MixtureOutput forward(const at::Tensor& x_bth, const at::Tensor& sum_bth,
                                              bool is_read) const = 0;

  // Sets the probability with which LoRA pairs drop an input.
  virtual void set_dropout(double dropout) = 0;
};

// `norm` gives the kind of the norms within.
[[nodiscard]] std::unique_ptr<FeedForward> make_feed_forward(const MlpConfig& config, const Norm& norm,
                                                             const LayerParameters& parameters);

}  // namespace rp::models
