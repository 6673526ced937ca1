// model_files/config/sigmoid_experts.h
// Reads the experts of families with Router::kSigmoid.
#pragma once

#include <cstdint>

#include "model_files/config/config_section.h"
#include "model_files/config/model_config.h"

namespace rp {

// The values of keys that a family with Router::kSigmoid has when config.json lacks them.
struct SigmoidExpertDefaults {
  std::int64_t per_token = 8;
  std::int64_t num_groups = 1, groups_per_token = 1;
  std::int64_t num_dense = 0;  // layers
  bool reads_types = false;    // mlp_layer_types takes the place of first_k_dense_replace
  double weight_scale = 1;
};

// Adds num_hidden_layers copies of `dense`. The later ones, after the first_k_dense_replace, or those
// that mlp_layer_types calls "sparse", have experts with Router::kSigmoid and a shared expert in place
// of their MLP.
void add_layers_with_sigmoid_experts(const ConfigSection& file, const DecoderLayerConfig& dense,
                                     const SigmoidExpertDefaults& defaults, ModelConfig& config);

}  // namespace rp
