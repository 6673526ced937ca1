// models/per_layer_input.h
// The part of a decoder layer that reads each token again: a row of the layer's own table, and a
// projection of the token's embedding (per-layer embeddings, as in Gemma 4).
//
// Shapes: b sequences, t positions, h hidden size, p width of the input.
#pragma once

#include <ATen/core/Tensor.h>

#include "model_files/config/model_config.h"
#include "models/layer_parameters.h"
#include "models/token_mixer.h"

namespace rp::models {

// Computes one layer's input, and adds what it gives.
class PerLayerInput {
 public:
  // REQUIRES: the layer has a per-layer input.
  PerLayerInput(const ModelConfig& model, const DecoderLayerConfig& layer, const LayerParameters& parameters,
                at::ScalarType dtype);

  // Returns x + post(projection(act(gate(x)) * input)), [b, t, h]. `embeddings_bth` are scaled.
  [[nodiscard]] at::Tensor added_to(const at::Tensor& x_bth, const at::Tensor& ids_bt,
                                    const at::Tensor& embeddings_bth) const;

  // Sets the probability with which LoRA pairs drop an input.
  void set_dropout(double dropout);

 private:
  [[nodiscard]] at::Tensor input(const at::Tensor& ids_bt, const at::Tensor& embeddings_bth) const;

  const Norm norm_;
  const Activation activation_;
  const std::int64_t padding_id_;
  const double table_scale_;  // rounded to the activations' dtype
  const double embedding_scale_;
  LinearWeights gate_, projection_;    // [p, h], [h, p]
  const LinearWeights of_embeddings_;  // [p, h]
  const at::Tensor table_vp_, norm_p_;
  const at::Tensor post_norm_h_;
};

}  // namespace rp::models
