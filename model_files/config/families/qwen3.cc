// Qwen3, dense: Llama with a norm for each query and key head.
#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

void read_qwen3(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_common(file, {.num_kv_heads = 32, .head_dim = 128, .max_positions = 32'768}, config);
  layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  layer.attention.head_norm = AttentionConfig::HeadNorm::kEachHead;
  layer.attention.qkv_bias = layer.attention.output_bias = file.boolean("attention_bias", false);
  add_layers(file, layer, config);
  read_qwen_windows(file, config);
}

}  // namespace

constexpr Family kQwen3Family{.model_type = "qwen3", .read = read_qwen3};

}  // namespace rp
