// Qwen2, Qwen2.5 and models distilled into them: Llama with biases on queries, keys and values.
#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

void read_qwen2(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_common(file, {.num_kv_heads = 32, .max_positions = 32'768}, config);
  layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  layer.attention.qkv_bias = true;
  add_layers(file, layer, config);
  read_qwen_windows(file, config);
}

}  // namespace

constexpr Family kQwen2Family{.model_type = "qwen2", .read = read_qwen2};

}  // namespace rp
