// model_files/config/linear_shapes.h
// Lists the linear layers of a decoder layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_files/config/model_config.h"

namespace rp {

// A linear layer of a decoder layer: a weight [out, in]; where it is the experts', one [num_experts, out, in], of which
// a token goes through `uses_per_token`.
struct LinearShape {
  std::string name{};
  std::int64_t out = 0;
  std::int64_t in = 0;
  bool has_bias = false;
  std::int64_t num_experts = 0;  // 0: it is not theirs
  std::int64_t uses_per_token = 1;
  bool is_expert_part = false;  // of experts or router
};
// In the order of the computation.
[[nodiscard]] std::vector<LinearShape> linears_of(const DecoderLayerConfig& layer, std::int64_t hidden);

}  // namespace rp
