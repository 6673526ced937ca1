#include "model_files/config/common_config.h"

#include <cmath>

#include "model_files/config/quantization_config.h"

namespace rp {
namespace {

constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 24;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;
constexpr double kMaxFactor = 1e6;

// Refuses settings that relatives of these architectures have and that would change the
// computation.
void refuse_what_nobody_has(const ConfigSection& file) {
  file.require("attention_dropout", 0);
  for (const char* key : {"embedding_multiplier", "residual_multiplier", "logits_scaling"}) file.require(key, 1);
  for (const char* key : {"attention_multiplier", "clip_qkv", "rope_interleaved"}) file.require_absent(key);
}

// LibTorch counts a negative index from the end of the vocabulary.
std::int64_t read_padding_id(const ConfigSection& file, std::int64_t vocabulary, std::int64_t otherwise) {
  constexpr const char* kKey = "pad_token_id";
  if (!file.has(kKey)) return file.is_null(kKey) || otherwise >= vocabulary ? -1 : otherwise;
  const auto id = static_cast<std::int64_t>(
      file.number(kKey, -static_cast<double>(vocabulary), static_cast<double>(vocabulary - 1)));
  return id < 0 ? vocabulary + id : id;
}

AttentionConfig read_heads(const ConfigSection& file, const FamilyDefaults& defaults, std::int64_t hidden) {
  AttentionConfig attention;
  const bool has_heads = file.has("num_attention_heads") || defaults.num_heads == 0;
  attention.num_heads = has_heads ? file.integer("num_attention_heads", kMaxWidth) : defaults.num_heads;
  attention.num_kv_heads = attention.num_heads;
  if (file.has("num_key_value_heads")) {
    attention.num_kv_heads = file.integer("num_key_value_heads", kMaxWidth);
  } else if (!file.is_null("num_key_value_heads") && defaults.num_kv_heads > 0) {
    attention.num_kv_heads = defaults.num_kv_heads;
  }
  if (attention.num_heads % attention.num_kv_heads != 0) {
    throw file.refuse("num_key_value_heads ", attention.num_kv_heads, " does not divide num_attention_heads ",
                      attention.num_heads);
  }
  if (file.has("head_dim")) {
    attention.head_dim = file.integer("head_dim", kMaxHeadDim);
  } else if (!file.is_null("head_dim") && defaults.head_dim > 0) {
    attention.head_dim = defaults.head_dim;
  } else {
    if (hidden % attention.num_heads != 0) {
      throw file.refuse("has no head_dim, and num_attention_heads ", attention.num_heads,
                        " does not divide hidden_size ", hidden);
    }
    attention.head_dim = hidden / attention.num_heads;
  }
  if (attention.head_dim % 2 != 0 || attention.head_dim > kMaxHeadDim) {
    throw file.refuse("head_dim is ", attention.head_dim, ", but must be even (rotary halves) and at most ",
                      kMaxHeadDim);
  }
  if (attention.query_width() > kMaxWidth) {
    throw file.refuse("num_attention_heads ", attention.num_heads, " of head_dim ", attention.head_dim,
                      " are wider than ", kMaxWidth);
  }
  attention.scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
  return attention;
}

// Some exporters write this key next to the rotary parameters; transformers then prefers it to the
// one within them.
std::int64_t original_positions(const ConfigSection& file, const ConfigSection& rope, std::int64_t otherwise) {
  constexpr const char* kKey = "original_max_position_embeddings";
  if (file.has(kKey) && rope.has(kKey) && file.integer(kKey, kMaxPositions) != rope.integer(kKey, kMaxPositions)) {
    throw file.refuse(kKey, " is ", file.integer(kKey, kMaxPositions), " next to and ",
                      rope.integer(kKey, kMaxPositions), " within the rotary parameters; remove the wrong one");
  }
  if (rope.has(kKey)) return rope.integer(kKey, kMaxPositions);
  return file.has(kKey) ? file.integer(kKey, kMaxPositions) : otherwise;
}

void read_llama3(const ConfigSection& rope, const char* key, RopeConfig& result) {
  result.low_freq_factor = rope.number("low_freq_factor", 1e-6, kMaxFactor);
  result.high_freq_factor = rope.number("high_freq_factor", 1e-6, kMaxFactor);
  if (result.high_freq_factor > result.low_freq_factor) return;
  throw rope.refuse(key, ": high_freq_factor ", result.high_freq_factor, " is not above low_freq_factor ",
                    result.low_freq_factor);
}

// Reads YaRN's parameters (arXiv 2309.00071) and computes the factor of cosine and sine as
// transformers does.
void read_yarn(const ConfigSection& rope, RopeConfig& result) {
  const auto number = [&](const char* key, double otherwise) {
    return rope.has(key) ? rope.number(key, 0, kMaxFactor) : otherwise;
  };
  result.beta_fast = number("beta_fast", 32);
  result.beta_slow = number("beta_slow", 1);
  result.truncates = rope.boolean("truncate", true);
  const auto growth = [&](double scale) { return yarn_growth(result.factor, scale); };
  const double scale = number("mscale", 0), scale_all = number("mscale_all_dim", 0);
  const double derived = scale != 0 && scale_all != 0 ? growth(scale) / growth(scale_all) : growth(1);
  result.attention_factor = number("attention_factor", derived);
}

// The values of keys that the object with the rotary parameters lacks.
struct RopeDefaults {
  double theta = 0;
  std::optional<double> rotated_part{};  // as in FamilyDefaults
};

// Reads the share of a head that is rotated. A value next to the rotary parameters counts if they
// have none.
double read_rotated_part(const ConfigSection& file, const ConfigSection& rope, std::optional<double> otherwise) {
  constexpr const char* kKey = "partial_rotary_factor";
  if (!otherwise) {
    for (const ConfigSection* section : {&file, &rope}) section->require(kKey, 1);
    return 1;
  }
  for (const ConfigSection* section : {&rope, &file}) {
    if (section->has(kKey)) return section->number(kKey, 1e-3, 1);
  }
  return *otherwise;
}

// `rope` is the object under `key`.
RopeConfig read_rope(const ConfigSection& file, const ConfigSection& rope, const char* key,
                     const RopeDefaults& defaults, std::int64_t max_positions) {
  const std::string type = rope.text("rope_type", rope.text("type", "default").c_str());
  const bool is_proportional = type == "proportional";
  RopeConfig result{
      .theta = rope.has("rope_theta") ? rope.number("rope_theta", 1, 1e15) : defaults.theta,
      .rotated_part = read_rotated_part(file, rope, is_proportional ? std::optional(1.0) : defaults.rotated_part)};
  if (type == "default") return result;
  result.kind = type == "linear"   ? RopeConfig::Kind::kLinear
                : type == "llama3" ? RopeConfig::Kind::kLlama3
                : type == "yarn"   ? RopeConfig::Kind::kYarn
                : is_proportional  ? RopeConfig::Kind::kProportional
                                   : RopeConfig::Kind::kNone;
  if (result.kind == RopeConfig::Kind::kNone) {
    throw file.refuse(key, ": rope_type is ", quoted_name(type),
                      "; the supported ones are 'default', 'linear', 'llama3', 'proportional' and 'yarn'");
  }
  if (is_proportional) {
    if (rope.has("factor")) result.factor = rope.number("factor", 1, kMaxFactor);
    return result;
  }
  result.factor = rope.number("factor", 1, kMaxFactor);
  if (result.kind == RopeConfig::Kind::kLinear) return result;
  result.original_positions = original_positions(file, rope, max_positions);
  result.kind == RopeConfig::Kind::kLlama3 ? read_llama3(rope, key, result) : read_yarn(rope, result);
  return result;
}

double read_theta(const ConfigSection& file, const char* key, double otherwise) {
  return file.has(key) ? file.number(key, 1, 1e15) : otherwise;
}

RopeConfig read_flat_rope(const ConfigSection& file, const char* key, RopeDefaults defaults,
                          std::int64_t max_positions) {
  const ConfigSection rope = file.section(key);
  if (const std::string member = rope.nested(); !member.empty()) {
    throw file.refuse(key, " has parameters of its own for ", quoted_name(member), ", which this family does not have");
  }
  defaults.theta = read_theta(file, "rope_theta", defaults.theta);
  return read_rope(file, rope, key, defaults, max_positions);
}

// Programs disagree about which of the two keys takes precedence, so both must describe the same
// rotation.
RopeConfig read_rope(const ConfigSection& file, const RopeDefaults& defaults, std::int64_t max_positions) {
  const char* key = file.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const RopeConfig rope = read_flat_rope(file, key, defaults, max_positions);
  if (file.has("rope_scaling") && read_flat_rope(file, "rope_scaling", defaults, max_positions) != rope) {
    throw file.refuse("rope_parameters and rope_scaling describe different rotary frequencies; remove the wrong one");
  }
  return rope;
}

}  // namespace

double yarn_growth(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

std::optional<DType> read_dtype(const ConfigSection& file) {
  const std::string name = file.text("dtype", file.text("torch_dtype", "").c_str());
  if (name.empty()) return std::nullopt;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16") return DType::kFloat16;
  if (name == "float32") return DType::kFloat32;
  throw file.refuse("dtype is ", quoted_name(name), "; the supported ones are 'bfloat16', 'float16' and 'float32'");
}

DecoderLayerConfig read_common(const ConfigSection& file, const FamilyDefaults& defaults, ModelConfig& config) {
  refuse_what_nobody_has(file);
  const std::string activation = file.text(defaults.activation_key, defaults.activation);
  if (activation != defaults.activation) {
    throw file.refuse(defaults.activation_key, " is ", quoted_name(activation), "; the supported one is ",
                      quoted_name(defaults.activation));
  }
  config.hidden = file.integer("hidden_size", kMaxWidth);
  const bool has_vocabulary = file.has("vocab_size") || defaults.vocabulary == 0;
  config.vocabulary = has_vocabulary ? file.integer("vocab_size", kMaxVocabulary) : defaults.vocabulary;
  config.padding_id = read_padding_id(file, config.vocabulary, defaults.padding_id);
  config.max_sequence_length = file.has("max_position_embeddings")
                                   ? file.integer("max_position_embeddings", kMaxPositions)
                                   : defaults.max_positions;
  config.norm_epsilon = file.has("rms_norm_eps") ? file.number("rms_norm_eps", 1e-15, 1) : defaults.norm_epsilon;
  config.tied_head = file.boolean("tie_word_embeddings", defaults.tied_head);
  config.dtype = read_dtype(file);
  read_quantization(file, config);
  DecoderLayerConfig layer;
  layer.attention = read_heads(file, defaults, config.hidden);
  if (!defaults.rope_by_type) {
    layer.attention.rope = read_rope(file, {.theta = defaults.rope_theta, .rotated_part = defaults.rotated_part},
                                     config.max_sequence_length);
  }
  if (const std::int64_t rotated = layer.attention.rotated_dim(); rotated < 2 || rotated % 2 != 0) {
    throw file.refuse("partial_rotary_factor ", layer.attention.rope.rotated_part, " of head_dim ",
                      layer.attention.head_dim, " are ", rotated, " elements, but must be an even number above 0");
  }
  if (file.has("intermediate_size")) layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  return layer;
}

RopesByType read_ropes_by_type(const ConfigSection& file, const RopesByType& defaults, const char* local_theta_key,
                               std::int64_t max_positions) {
  constexpr const char* kKey = "rope_parameters";
  if (!file.has(kKey)) {
    RopesByType ropes = {read_flat_rope(file, "rope_scaling", {.theta = defaults.full.theta}, max_positions),
                         defaults.sliding};
    ropes.sliding.theta =
        read_theta(file, local_theta_key != nullptr ? local_theta_key : "rope_theta", defaults.sliding.theta);
    return ropes;
  }
  const ConfigSection both = file.section(kKey);
  const auto rope_of = [&](const char* type, const RopeConfig& otherwise) {
    if (!both.has(type))
      throw file.refuse(kKey, " has nothing for ", quoted_name(type), "; layers of this family rotate by their type");
    RopeConfig rope = read_rope(file, both.section(type), kKey, {.theta = otherwise.theta}, max_positions);
    rope.truncates = true;  // transformers 5 looks for `truncate` in the outer object, which never has it
    return rope;
  };
  const RopesByType ropes = {rope_of("full_attention", defaults.full), rope_of("sliding_attention", defaults.sliding)};
  if (file.has("rope_scaling")) throw file.refuse("has both rope_parameters and rope_scaling; remove the wrong one");
  return ropes;
}

void add_layers(const ConfigSection& file, const DecoderLayerConfig& layer, ModelConfig& config) {
  config.layers.assign(static_cast<std::size_t>(file.integer("num_hidden_layers", kMaxHiddenLayers)), layer);
}

std::vector<std::string> read_layer_types(const ConfigSection& file, std::int64_t num_layers,
                                          std::string_view other_type) {
  std::vector<std::string> types = file.texts("layer_types");
  if (!types.empty() && types.size() != static_cast<std::size_t>(num_layers)) {
    throw file.refuse("layer_types has ", types.size(), " entries, but num_hidden_layers is ", num_layers);
  }
  for (const std::string& type : types) {
    if (type == "full_attention" || type == other_type) continue;
    throw file.refuse("layer_types has ", quoted_name(type), "; the supported ones are 'full_attention' and ",
                      quoted_name(other_type));
  }
  return types;
}

void read_qwen_windows(const ConfigSection& file, ModelConfig& config) {
  file.knows({"layer_types", "max_window_layers", "sliding_window"});
  if (!file.boolean("use_sliding_window", false)) return;
  const std::int64_t first = file.has("max_window_layers") ? file.count("max_window_layers", kMaxHiddenLayers) : 28;
  read_windows(file, config, [first](std::int64_t i) { return i >= first; });
}

ExpertsConfig read_experts(const ConfigSection& file, const char* number_key) {
  ExpertsConfig experts;
  experts.num = file.integer(number_key, kMaxExperts);
  experts.per_token = file.integer("num_experts_per_tok", experts.num);
  if (file.boolean("output_router_logits", false)) {
    experts.balance_coefficient =
        file.has("router_aux_loss_coef") ? file.number("router_aux_loss_coef", 0, 1e6) : 0.001;
  }
  return experts;
}

}  // namespace rp
