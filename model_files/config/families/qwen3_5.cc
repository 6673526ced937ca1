// Qwen3.5 and 3.6, dense and with experts: three layers with a gated delta rule to one with gated
// attention.
#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

DeltaNetConfig read_delta_net(const ConfigSection& file) {
  constexpr std::int64_t kMaxTaps = 8;
  const auto number = [&](const char* key, std::int64_t max, std::int64_t otherwise) {
    return file.has(key) ? file.integer(key, max) : otherwise;
  };
  DeltaNetConfig net{.num_key_heads = number("linear_num_key_heads", kMaxWidth, 16),
                     .num_value_heads = number("linear_num_value_heads", kMaxWidth, 32),
                     .key_dim = number("linear_key_head_dim", kMaxHeadDim, 128),
                     .value_dim = number("linear_value_head_dim", kMaxHeadDim, 128),
                     .taps = number("linear_conv_kernel_dim", kMaxTaps, 4)};
  if (net.num_value_heads % net.num_key_heads != 0) {
    throw file.refuse("linear_num_key_heads ", net.num_key_heads, " does not divide linear_num_value_heads ",
                      net.num_value_heads);
  }
  if (net.convolved_width() > kMaxWidth) {
    throw file.refuse("its linear attention has ", net.convolved_width(), " channels; at most ", kMaxWidth,
                      " are supported");
  }
  return net;
}

// Returns a layer with full attention, without its MLP.
DecoderLayerConfig read_full_layer(const ConfigSection& file, std::int64_t num_kv_heads, ModelConfig& config) {
  DecoderLayerConfig full = read_common(file,
                                        {.num_heads = 16,
                                         .num_kv_heads = num_kv_heads,
                                         .head_dim = 256,
                                         .max_positions = 32'768,
                                         .vocabulary = 248'320,
                                         .rotated_part = 0.25},
                                        config);
  config.norm = NormKind::kOffset;
  full.attention.head_norm = AttentionConfig::HeadNorm::kEachHead;
  full.attention.has_output_gate = true;
  full.attention.qkv_bias = full.attention.output_bias = file.boolean("attention_bias", false);
  // transformers does not read these, and drops the layers that predict a second token.
  file.knows({"attn_output_gate", "mamba_ssm_dtype", "mlp_only_layers", "mtp_num_hidden_layers",
              "mtp_use_dedicated_embeddings"});
  return full;
}

// Adds the layers, of which those with full attention are like `full`.
void add_hybrid_layers(const ConfigSection& file, const DecoderLayerConfig& full, ModelConfig& config) {
  DecoderLayerConfig linear = full;
  linear.attention = {};
  linear.delta_net = read_delta_net(file);
  add_layers(file, full, config);
  const std::vector<std::string> types = read_layer_types(file, config.num_layers(), "linear_attention");
  const std::int64_t interval =
      file.has("full_attention_interval") ? file.integer("full_attention_interval", kMaxHiddenLayers) : 4;
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    const auto place = static_cast<std::size_t>(i);
    const bool is_full = types.empty() ? (i + 1) % interval == 0 : types[place] == "full_attention";
    if (!is_full) config.layers[place] = linear;
  }
}

void read_qwen3_5(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig full = read_full_layer(file, 4, config);
  full.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  add_hybrid_layers(file, full, config);
}

void read_qwen3_5_moe(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig full = read_full_layer(file, 2, config);
  constexpr const char* kSharedWidth = "shared_expert_intermediate_size";
  full.mlp.intermediate = file.integer("moe_intermediate_size", kMaxInner);
  full.mlp.experts = read_experts(file, file.has("num_experts") ? "num_experts" : "num_local_experts");
  full.mlp.experts->normalises = true;
  full.mlp.experts->shared =
      SharedExpertConfig{.name = "mlp.shared_expert",
                         .intermediate = file.has(kSharedWidth) ? file.integer(kSharedWidth, kMaxInner) : 512,
                         .has_gate = true};
  add_hybrid_layers(file, full, config);
}

}  // namespace

constexpr Family kQwen35TextFamily{.model_type = "qwen3_5_text", .read = read_qwen3_5};
constexpr Family kQwen35MoeTextFamily{.model_type = "qwen3_5_moe_text", .read = read_qwen3_5_moe};

// transformers' class for causal language models contains the text part alone. Adapters have its
// names, since peft makes them for this class.
constexpr Wrapper kQwen35Wrapper{.model_type = "qwen3_5",
                                 .text_type = "qwen3_5_text",
                                 .body_in_files = kTextInWrapper,
                                 .head_in_files = {},
                                 .body_in_memory = "model.",
                                 .head_in_memory = {},
                                 .tied_head = false};

constexpr Wrapper kQwen35MoeWrapper{.model_type = "qwen3_5_moe",
                                    .text_type = "qwen3_5_moe_text",
                                    .body_in_files = kTextInWrapper,
                                    .head_in_files = {},
                                    .body_in_memory = "model.",
                                    .head_in_memory = {},
                                    .tied_head = false};

}  // namespace rp
