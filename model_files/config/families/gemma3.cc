// Gemma 3: norms before and after both attention and the MLP; five layers with a window to one
// without.
#include <cmath>

#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

void read_gemma3(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_common(file,
                                         {.num_heads = 8,
                                          .num_kv_heads = 4,
                                          .head_dim = 256,
                                          .tied_head = true,
                                          .padding_id = 0,
                                          .max_positions = 131'072,
                                          .vocabulary = 262'208,
                                          .activation_key = "hidden_activation",
                                          .activation = "gelu_pytorch_tanh",
                                          .rope_by_type = true},
                                         config);
  config.norm = NormKind::kOffset;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
  config.logit_softcap = file.has("final_logit_softcapping") ? file.number("final_logit_softcapping", 1e-3, 1e6) : 0;
  if (file.boolean("use_bidirectional_attention", false)) {
    throw file.refuse("use_bidirectional_attention is true: models that embed texts are not supported");
  }
  const double query_scalar = file.has("query_pre_attn_scalar") ? file.number("query_pre_attn_scalar", 1e-3, 1e6) : 256;
  layer.attention.scale = 1 / std::sqrt(query_scalar);
  layer.attention.head_norm = AttentionConfig::HeadNorm::kEachHead;
  layer.attention.qkv_bias = layer.attention.output_bias = file.boolean("attention_bias", false);
  layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  layer.mlp.activation = Activation::kGeluTanh;
  layer.attention_post_norm = "post_attention_layernorm";
  layer.mlp_norm = "pre_feedforward_layernorm";
  layer.mlp_post_norm = "post_feedforward_layernorm";
  add_layers(file, layer, config);
  const char* pattern_key = file.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const std::int64_t pattern = file.has(pattern_key) ? file.integer(pattern_key, kMaxLayers) : 6;
  read_windows(
      file, config, [pattern](std::int64_t i) { return (i + 1) % pattern != 0; }, 4096);
  const RopesByType ropes =
      read_ropes_by_type(file, {{.theta = 1e6}, {.theta = 1e4}}, "rope_local_base_freq", config.max_sequence_length);
  for (DecoderLayerConfig& each : config.layers)
    each.attention.rope = each.attention.window > 0 ? ropes.sliding : ropes.full;
}

}  // namespace

constexpr Family kGemma3TextFamily{.model_type = "gemma3_text", .read = read_gemma3};

constexpr Wrapper kGemma3Wrapper{.model_type = "gemma3", .text_type = "gemma3_text", .head_in_memory = {}};

}  // namespace rp
