// models/token_mixer.h
// The part of a decoder layer in which tokens exchange data: attention, latent attention, or a gated
// delta rule.
//
// Shapes: b sequences, t positions, h hidden size.
#pragma once

#include <memory>

#include "model_files/config/model_config.h"
#include "models/layer_parameters.h"
#include "models/layers/attention/attention.h"
#include "models/layers/ops.h"

namespace rp::models {

// A root mean square norm as a model defines it.
struct Norm {
  double epsilon = 0;
  NormKind kind = NormKind::kRounded;

  // Returns x itself if the weight is undefined, because the model then has no such norm.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x, const at::Tensor& weight) const {
    return weight.defined() ? rms_norm(x, weight, epsilon, kind) : x;
  }

  // Returns x divided by its root mean square over the last dimension.
  [[nodiscard]] at::Tensor without_weight(const at::Tensor& x) const;
};

// Computes the part of one decoder layer in which tokens exchange data.
class TokenMixer {
 public:
  virtual ~TokenMixer() = default;

  // Computes x [b, t, h] -> [b, t, h]. `documents_bk` are the lengths of packed documents
  // (models/layers/documents.h), between which nothing passes; undefined: each sequence is one.
  // `shared`: the keys and values of the layer that AttentionConfig::keys_of_layer names or, if it
  // names none, where to put those of this layer, which other layers use; null if no other does.
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& x_bth, const at::Tensor& documents_bk,
                                           KeysAndValues* shared) = 0;

  // Sets the probability with which LoRA pairs drop an input.
  virtual void set_dropout(double dropout) = 0;
};

// REQUIRES: the layer has no other mixer.
[[nodiscard]] std::unique_ptr<TokenMixer> make_attention(const AttentionConfig& config, const Norm& norm,
                                                         const LayerParameters& parameters);

// `norm` only gives the kind of the norms within.
[[nodiscard]] std::unique_ptr<TokenMixer> make_latent_attention(const LatentAttentionConfig& config, const Norm& norm,
                                                                const LayerParameters& parameters);

[[nodiscard]] std::unique_ptr<TokenMixer> make_delta_net(const DeltaNetConfig& config, const Norm& norm,
                                                         const LayerParameters& parameters);

}  // namespace rp::models
