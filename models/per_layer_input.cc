#include "models/per_layer_input.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>
#include <string>

#include "models/layers/embedding.h"

namespace rp::models {

PerLayerInput::PerLayerInput(const ModelConfig& model, const DecoderLayerConfig& layer,
                             const LayerParameters& parameters, at::ScalarType dtype)
    : norm_{.epsilon = model.norm_epsilon, .kind = model.norm},
      activation_(layer.mlp.activation),
      padding_id_(model.padding_id),
      table_scale_(rounded_scale(std::sqrt(static_cast<double>(layer.per_layer_input->width)), dtype)),
      embedding_scale_(1 / std::sqrt(static_cast<double>(model.hidden))),
      gate_(parameters.linear("per_layer_input_gate")),
      projection_(parameters.linear("per_layer_projection")),
      of_embeddings_(parameters.linear(kPerLayerProjection)),
      table_vp_(parameters.tensor(std::string(kPerLayerTable))),
      norm_p_(parameters.tensor(std::string(kPerLayerNorm))),
      post_norm_h_(parameters.tensor("post_per_layer_input_norm.weight")) {}

void PerLayerInput::set_dropout(double dropout) {
  gate_.lora.dropout = dropout;
  projection_.lora.dropout = dropout;
}

at::Tensor PerLayerInput::input(const at::Tensor& ids_bt, const at::Tensor& embeddings_bth) const {
  const at::Tensor projected_btp = norm_(linear(embeddings_bth, of_embeddings_) * embedding_scale_, norm_p_);
  const at::Tensor rows_btp = embed(table_vp_, ids_bt, padding_id_) * table_scale_;
  return (projected_btp + rows_btp) * (1 / std::numbers::sqrt2);
}

at::Tensor PerLayerInput::added_to(const at::Tensor& x_bth, const at::Tensor& ids_bt,
                                   const at::Tensor& embeddings_bth) const {
  const at::Tensor inner_btp = glu(linear(x_bth, gate_), input(ids_bt, embeddings_bth), activation_);
  return x_bth + norm_(linear(inner_btp, projection_), post_norm_h_);
}

}  // namespace rp::models
