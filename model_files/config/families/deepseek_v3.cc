// DeepSeek V3 and R1, models of their shape such as Moonlight, and GLM-4.7-Flash: latent attention, and experts with a
// sigmoid router.
#include <algorithm>
#include <cmath>

#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"
#include "model_files/config/sigmoid_experts.h"

namespace rp {
namespace {

// The values of keys that config.json lacks, where they differ between the families.
struct LatentDefaults {
  std::int64_t query_rank = 0, plain_dim = 0, value_dim = 0;
};

// Returns what a stretched context multiplies the scores by, in addition to 1 / sqrt(size of a head).
double read_score_growth(const ConfigSection& file, const RopeConfig& rope) {
  constexpr const char* kKey = "mscale_all_dim";
  const auto scale_in = [&](const char* key) {
    const ConfigSection section = file.section(key);
    return section.has(kKey) ? section.number(kKey, 0, 1e6) : 0;
  };
  const double scale = scale_in(file.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (file.has("rope_scaling") && scale_in("rope_scaling") != scale)
    throw file.refuse("rope_parameters and rope_scaling differ in ", kKey, "; remove the wrong one");
  if (rope.kind == RopeConfig::Kind::kPlain || scale == 0) return 1;
  const double growth = yarn_growth(rope.factor, scale);
  return growth * growth;
}

LatentAttentionConfig read_latent_attention(const ConfigSection& file, const AttentionConfig& heads,
                                            const LatentDefaults& defaults) {
  const auto number = [&](const char* key, std::int64_t max, std::int64_t otherwise) {
    return file.has(key) ? file.integer(key, max) : otherwise;
  };
  LatentAttentionConfig attention{.num_heads = heads.num_heads,
                                  .query_rank = number("q_lora_rank", kMaxWidth, defaults.query_rank),
                                  .kv_rank = number("kv_lora_rank", kMaxWidth, 512),
                                  .plain_dim = number("qk_nope_head_dim", kMaxHeadDim, defaults.plain_dim),
                                  .rotated_dim = number("qk_rope_head_dim", kMaxHeadDim, 64),
                                  .value_dim = number("v_head_dim", kMaxHeadDim, defaults.value_dim),
                                  .has_bias = file.boolean("attention_bias", false),
                                  .rope = heads.rope};
  if (file.is_null("q_lora_rank")) attention.query_rank = 0;
  attention.pairs_neighbours = !file.is_null("rope_interleave") && file.boolean("rope_interleave", true);
  attention.scale = read_score_growth(file, heads.rope) / std::sqrt(static_cast<double>(attention.query_dim()));
  return attention;
}

void check_heads(const ConfigSection& file, const AttentionConfig& heads, const LatentAttentionConfig& attention) {
  if (heads.num_kv_heads != heads.num_heads) {
    throw file.refuse("num_key_value_heads is ", heads.num_kv_heads, ", but num_attention_heads is ", heads.num_heads,
                      "; with latent attention they must be equal");
  }
  if (attention.rotated_dim % 2 != 0)
    throw file.refuse("qk_rope_head_dim is ", attention.rotated_dim, ", but must be even (rotary pairs)");
  if (file.has("head_dim") && heads.head_dim != attention.rotated_dim) {
    throw file.refuse("head_dim is ", heads.head_dim, ", but qk_rope_head_dim is ", attention.rotated_dim,
                      "; in this family both are the rotated part of a head");
  }
  if (std::max(attention.query_width(), attention.kv_width()) > kMaxWidth) {
    throw file.refuse("num_attention_heads ", attention.num_heads, " of qk_nope_head_dim ", attention.plain_dim,
                      ", qk_rope_head_dim ", attention.rotated_dim, " and v_head_dim ", attention.value_dim,
                      " are wider than ", kMaxWidth);
  }
}

// Files name the only kind of router that transformers computes.
void check_router(const ConfigSection& file) {
  const auto require = [&](const char* key, const char* supported) {
    if (const std::string text = file.text(key, supported); text != supported)
      throw file.refuse(key, " is ", quoted_name(text), "; the supported one is ", quoted_name(supported));
  };
  require("scoring_func", "sigmoid");
  require("topk_method", "noaux_tc");
  file.require("moe_layer_freq", 1);
}

void read(const ConfigSection& file, const FamilyDefaults& common, std::int64_t intermediate,
          const LatentDefaults& latent, const SigmoidExpertDefaults& experts, ModelConfig& config) {
  DecoderLayerConfig dense = read_common(file, common, config);
  if (!file.has("intermediate_size")) dense.mlp.intermediate = intermediate;
  dense.latent_attention = read_latent_attention(file, dense.attention, latent);
  check_heads(file, dense.attention, *dense.latent_attention);
  dense.attention = {};
  check_router(file);
  add_layers_with_sigmoid_experts(file, dense, experts, config);
  file.knows({"ep_size", "qk_head_dim", "seq_aux", "aux_loss_alpha"});
}

void read_deepseek_v3(const ConfigSection& file, ModelConfig& config) {
  read(file, {.num_heads = 128, .head_dim = 64, .max_positions = 4096, .vocabulary = 129'280}, 18'432,
       {.query_rank = 1536, .plain_dim = 128, .value_dim = 128},
       {.num_groups = 8, .groups_per_token = 4, .num_dense = 3, .weight_scale = 2.5}, config);
}

void read_glm4_moe_lite(const ConfigSection& file, ModelConfig& config) {
  read(file, {.num_heads = 20, .head_dim = 64, .norm_epsilon = 1e-5, .max_positions = 202'752, .vocabulary = 154'880},
       10'240, {.query_rank = 768, .plain_dim = 192, .value_dim = 256},
       {.per_token = 4, .num_dense = 1, .reads_types = true, .weight_scale = 1.8}, config);
}

}  // namespace

constexpr Family kDeepseekV3Family{.model_type = "deepseek_v3", .read = read_deepseek_v3};
constexpr Family kGlm4MoeLiteFamily{.model_type = "glm4_moe_lite", .read = read_glm4_moe_lite};

}  // namespace rp
