#include "model_files/config/families/gemma.h"

#include <cmath>

#include "model_files/config/common_config.h"

namespace rp {

DecoderLayerConfig read_gemma_layer(const ConfigSection& file, std::int64_t vocabulary, ModelConfig& config) {
  DecoderLayerConfig layer = read_common(file,
                                         {.num_heads = 8,
                                          .num_kv_heads = 4,
                                          .head_dim = 256,
                                          .tied_head = true,
                                          .padding_id = 0,
                                          .max_positions = 131'072,
                                          .vocabulary = vocabulary,
                                          .activation_key = "hidden_activation",
                                          .activation = "gelu_pytorch_tanh",
                                          .rope_by_type = true},
                                         config);
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
  config.logit_softcap = file.has("final_logit_softcapping") ? file.number("final_logit_softcapping", 1e-3, 1e6) : 0;
  layer.attention.head_norm = AttentionConfig::HeadNorm::kEachHead;
  layer.attention.qkv_bias = layer.attention.output_bias = file.boolean("attention_bias", false);
  layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  layer.mlp.activation = Activation::kGeluTanh;
  layer.attention_post_norm = "post_attention_layernorm";
  layer.mlp_norm = "pre_feedforward_layernorm";
  layer.mlp_post_norm = "post_feedforward_layernorm";
  return layer;
}

}  // namespace rp
