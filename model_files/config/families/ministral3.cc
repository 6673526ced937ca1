// Ministral 3: Mistral with YaRN, and with queries that are scaled up with their position.
#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

void read_ministral3(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_common(file,
                                         {.num_heads = 32,
                                          .num_kv_heads = 8,
                                          .head_dim = 128,
                                          .norm_epsilon = 1e-5,
                                          .padding_id = 11,
                                          .max_positions = 262'144,
                                          .vocabulary = 131'072},
                                         config);
  layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  if (file.has("sliding_window")) layer.attention.window = file.integer("sliding_window", kMaxWindow);
  const char* key = file.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (file.has(key)) {
    const ConfigSection rope = file.section(key);
    layer.attention.query_growth = rope.number("llama_4_scaling_beta", 0, 1e6);
    layer.attention.query_growth_positions = rope.integer("original_max_position_embeddings", kMaxWindow);
  } else {
    layer.attention.rope = {.kind = RopeConfig::Kind::kYarn, .theta = 1e6, .factor = 16, .original_positions = 16'384};
    layer.attention.query_growth = 0.1;
    layer.attention.query_growth_positions = layer.attention.rope.original_positions;
  }
  add_layers(file, layer, config);
}

}  // namespace

constexpr Family kMinistral3Family{.model_type = "ministral3", .read = read_ministral3};

}  // namespace rp
