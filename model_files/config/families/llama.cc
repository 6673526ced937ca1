// Llama 2 to 3.3, SmolLM2, and any other model whose model_type is "llama".
#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

void read_llama(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_common(file, {}, config);
  layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  layer.mlp.has_bias = file.boolean("mlp_bias", false);
  layer.attention.qkv_bias = layer.attention.output_bias = file.boolean("attention_bias", false);
  // Relatives of this architecture add these settings, which are not supported.
  if (file.boolean("use_sliding_window", true)) file.require_absent("sliding_window");
  file.require_all("layer_types", "full_attention");
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) file.require_absent(key);
  add_layers(file, layer, config);
}

}  // namespace

constexpr Family kLlamaFamily{.model_type = "llama", .read = read_llama};

}  // namespace rp
