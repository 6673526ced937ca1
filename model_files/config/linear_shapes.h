// model_files/config/linear_shapes.h
// Lists the linear layers of a decoder layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_files/config/model_config.h"

namespace rp {

// A linear layer of a decoder layer. Its weight is [out, in], or [num_experts, out, in] for the
// weights of all experts, of which each token uses `uses_per_token`.
struct LinearShape {
  std::string name{};
  std::int64_t out = 0;
  std::int64_t in = 0;
  bool has_bias = false;
  std::int64_t num_experts = 0;  // 0: not a layer of the experts
  std::int64_t uses_per_token = 1;
  bool is_expert_part = false;  // a layer of the experts or the router
  bool is_gate = false;         // few outputs that decide: a router, gates of a whole head
  // These outputs of a linear layer that all decoder layers have in common. They have no pair of their own.
  bool is_slice = false;
};
// The name of the linear layer that computes per-layer inputs from embeddings, of which each layer has a slice.
inline constexpr const char* kPerLayerProjection = "per_layer_model_projection";

// Returns the linear layers in the order of the computation.
[[nodiscard]] std::vector<LinearShape> linears_of(const DecoderLayerConfig& layer, std::int64_t hidden);

}  // namespace rp
