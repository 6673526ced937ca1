// OLMo 3: norms after attention and MLP only, and a norm over all query heads or key heads
// together; three layers with a window to one without.
#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

void read_olmo3(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_common(file, {.norm_epsilon = 1e-5, .padding_id = 1, .rope_by_type = true}, config);
  config.norm = NormKind::kUnrounded;
  layer.attention.head_norm = AttentionConfig::HeadNorm::kWholeRow;
  layer.attention.qkv_bias = layer.attention.output_bias = file.boolean("attention_bias", false);
  layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  layer.attention_norm = layer.mlp_norm = "";
  layer.attention_post_norm = "post_attention_layernorm";
  layer.mlp_post_norm = "post_feedforward_layernorm";
  add_layers(file, layer, config);
  read_windows(
      file, config, [](std::int64_t i) { return (i + 1) % 4 != 0; }, 4096);
  RopesByType ropes = read_ropes_by_type(file, {{.theta = 5e5}, {.theta = 5e5}}, nullptr, config.max_sequence_length);
  ropes.full.rounds_table = ropes.sliding.rounds_table = false;
  for (DecoderLayerConfig& each : config.layers)
    each.attention.rope = each.attention.window > 0 ? ropes.sliding : ropes.full;
}

}  // namespace

constexpr Family kOlmo3Family{.model_type = "olmo3", .read = read_olmo3};

}  // namespace rp
