// Qwen3 with experts: 30B-A3B, 235B-A22B.
#include <set>

#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

void read_qwen3_moe(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig dense = read_common(file, {.num_kv_heads = 4, .max_positions = 32'768}, config);
  dense.attention.head_norm = AttentionConfig::HeadNorm::kEachHead;
  dense.attention.qkv_bias = dense.attention.output_bias = file.boolean("attention_bias", false);
  // In this class either all layers have a window or none has.
  file.knows({"layer_types", "max_window_layers", "sliding_window"});
  if (file.boolean("use_sliding_window", false)) dense.attention.window = file.integer("sliding_window", kMaxWindow);
  DecoderLayerConfig sparse = dense;
  sparse.mlp.intermediate = file.integer("moe_intermediate_size", kMaxInner);
  sparse.mlp.experts = read_experts(file, file.has("num_experts") ? "num_experts" : "num_local_experts");
  sparse.mlp.experts->normalises = file.boolean("norm_topk_prob", false);
  add_layers(file, sparse, config);
  const std::int64_t step = file.has("decoder_sparse_step") ? file.integer("decoder_sparse_step", kMaxHiddenLayers) : 1;
  const std::vector<std::int64_t> named = file.integers("mlp_only_layers", 0, config.num_layers() - 1);
  const std::set<std::int64_t> without(named.begin(), named.end());
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    if ((i + 1) % step == 0 && !without.contains(i)) continue;
    (void)file.integer("intermediate_size", kMaxInner);
    config.layers[i] = dense;
  }
}

}  // namespace

constexpr Family kQwen3MoeFamily{.model_type = "qwen3_moe", .read = read_qwen3_moe};

}  // namespace rp
