// GPT-OSS: experts with biases and a clamped activation, sinks, a window in every other layer,
// YaRN.
#include <cmath>

#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

void read_gpt_oss(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_common(
      file, {.num_kv_heads = 8, .head_dim = 64, .norm_epsilon = 1e-5, .rope_theta = 150'000, .max_positions = 131'072},
      config);
  config.norm = NormKind::kUnrounded;
  if (!file.has("rope_parameters") && !file.has("rope_scaling")) {
    constexpr double kFactor = 32;
    layer.attention.rope = {.kind = RopeConfig::Kind::kYarn,
                            .theta = layer.attention.rope.theta,
                            .factor = kFactor,
                            .original_positions = 4096,
                            .truncates = false,
                            .attention_factor = 0.1 * std::log(kFactor) + 1};
  }
  layer.attention.qkv_bias = layer.attention.output_bias = file.boolean("attention_bias", true);
  layer.attention.has_sinks = true;
  layer.mlp = {.intermediate = file.integer("intermediate_size", kMaxInner),
               .activation = Activation::kClampedSwish,
               .has_bias = true,
               .experts = read_experts(file, "num_local_experts")};
  layer.mlp.experts->router = ExpertsConfig::Router::kLargestFirst;
  layer.mlp.experts->router_name = "mlp.router";
  layer.mlp.experts->is_interleaved = true;
  file.require("swiglu_limit", 7);
  file.require("swiglu_alpha", 1.702);
  add_layers(file, layer, config);
  read_windows(file, config, [](std::int64_t i) { return i % 2 == 0; });
}

}  // namespace

constexpr Family kGptOssFamily{.model_type = "gpt_oss", .read = read_gpt_oss};

}  // namespace rp
