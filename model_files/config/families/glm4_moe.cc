// GLM-4.5, 4.6 and 4.7, and the Air models: experts with a sigmoid router, and heads that are rotated
// in part.
#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"
#include "model_files/config/sigmoid_experts.h"

namespace rp {
namespace {

void read_glm4_moe(const ConfigSection& file, ModelConfig& config) {
  constexpr std::int64_t kIntermediate = 10'944;
  DecoderLayerConfig dense = read_common(file,
                                         {.num_heads = 96,
                                          .num_kv_heads = 8,
                                          .norm_epsilon = 1e-5,
                                          .max_positions = 131'072,
                                          .vocabulary = 151'552,
                                          .rotated_part = 0.5},
                                         config);
  if (!file.has("intermediate_size")) dense.mlp.intermediate = kIntermediate;
  dense.attention.qkv_bias = file.boolean("attention_bias", false);
  if (file.boolean("use_qk_norm", false)) dense.attention.head_norm = AttentionConfig::HeadNorm::kEachHead;
  add_layers_with_sigmoid_experts(file, dense, {.num_dense = 1}, config);
}

}  // namespace

constexpr Family kGlm4MoeFamily{.model_type = "glm4_moe", .read = read_glm4_moe};

}  // namespace rp
