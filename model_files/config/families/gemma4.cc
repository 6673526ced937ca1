// Gemma 4 (text): keys and values of earlier layers, a table in each layer, and experts next to an MLP, each in some of
// its models.
#include <algorithm>
#include <map>

#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"
#include "model_files/config/families/gemma.h"

namespace rp {
namespace {

constexpr std::int64_t kUsualVocabulary = 262'144;

// The sizes of attention that differ between layers.
struct HeadSizes {
  std::int64_t head_dim = 0, num_kv_heads = 0;
  bool operator==(const HeadSizes&) const = default;
};

std::vector<bool> has_window_of(const ConfigSection& file, std::int64_t num_layers) {
  constexpr std::int64_t kPattern = 6;
  const std::vector<std::string> types = read_layer_types(file, num_layers);
  std::vector<bool> has_window;
  for (std::int64_t i = 0; i < num_layers; ++i)
    has_window.push_back(types.empty() ? (i + 1) % kPattern != 0 : types[i] != "full_attention");
  has_window.back() = false;  // whatever layer_types says, as in transformers
  return has_window;
}

// Reads the exceptions of per_layer_config, the form that transformers 5.23 writes.
std::map<std::int64_t, HeadSizes> read_exceptions(const ConfigSection& file, std::int64_t num_layers,
                                                  const HeadSizes& usual) {
  const ConfigSection exceptions = file.section("per_layer_config");
  std::map<std::int64_t, HeadSizes> sizes;
  for (const auto& [key, value] : exceptions.object().items()) {
    const bool is_number = key.size() <= 5 && key.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t layer = is_number && !key.empty() ? std::stoll(key) : num_layers;
    if (layer >= num_layers)
      throw file.refuse("per_layer_config has ", quoted_name(key), ", which is no number of a layer");
    const ConfigSection of_layer = exceptions.section(key.c_str());
    const auto [place, is_new] = sizes.emplace(layer, usual);
    if (!is_new) throw file.refuse("per_layer_config has layer ", layer, " twice");
    HeadSizes& own = place->second;
    if (of_layer.has("head_dim")) own.head_dim = of_layer.integer("head_dim", kMaxHeadDim);
    if (of_layer.has("num_key_value_heads")) own.num_kv_heads = of_layer.integer("num_key_value_heads", kMaxWidth);
    if (const std::vector<std::string> unread = of_layer.unread(); !unread.empty())
      throw file.refuse("per_layer_config sets ", quoted_name(unread.front()), ", which is not supported");
  }
  return sizes;
}

// Returns the sizes of each layer.
std::vector<HeadSizes> read_sizes(const ConfigSection& file, const std::vector<bool>& has_window,
                                  const AttentionConfig& attention) {
  constexpr std::int64_t kGlobalHeadDim = 512;
  const HeadSizes usual{attention.head_dim, attention.num_kv_heads};
  std::vector<HeadSizes> sizes(has_window.size(), usual);
  if (file.has("per_layer_config")) {
    file.knows({"global_head_dim", "num_global_key_value_heads"});
    for (const auto& [layer, own] : read_exceptions(file, static_cast<std::int64_t>(has_window.size()), usual))
      sizes[static_cast<std::size_t>(layer)] = own;
    return sizes;
  }
  HeadSizes full = usual;
  full.head_dim = file.has("global_head_dim") ? file.integer("global_head_dim", kMaxHeadDim) : kGlobalHeadDim;
  file.knows({"num_global_key_value_heads"});
  if (file.boolean("attention_k_eq_v", false) && file.has("num_global_key_value_heads"))
    full.num_kv_heads = file.integer("num_global_key_value_heads", kMaxWidth);
  for (std::size_t i = 0; i < has_window.size(); ++i) sizes[i] = has_window[i] ? usual : full;
  return sizes;
}

void check_sizes(const ConfigSection& file, const AttentionConfig& attention, std::size_t layer) {
  if (attention.head_dim % 2 != 0 || attention.num_heads % attention.num_kv_heads != 0 ||
      attention.query_width() > kMaxWidth) {
    throw file.refuse(
        "layer ", layer, " has ", attention.num_heads, " heads of ", attention.head_dim, " elements and ",
        attention.num_kv_heads,
        " heads of keys: the first must be a multiple of the last, the size even, and all heads together ", "at most ",
        kMaxWidth, " wide");
  }
}

void read_attention(const ConfigSection& file, ModelConfig& config) {
  constexpr std::int64_t kWindow = 512;
  const std::vector<bool> has_window = has_window_of(file, config.num_layers());
  const std::vector<HeadSizes> sizes = read_sizes(file, has_window, config.layers.front().attention);
  RopesByType ropes{.full = {.kind = RopeConfig::Kind::kProportional, .theta = 1e6, .rotated_part = 0.25},
                    .sliding = {.theta = 1e4}};
  if (file.has("rope_parameters")) {
    const RopeConfig plain{.theta = 1e4};
    ropes = read_ropes_by_type(file, {plain, plain}, nullptr, config.max_sequence_length);
  }
  const bool has_equal_values = file.boolean("attention_k_eq_v", false);
  const std::int64_t window = file.has("sliding_window") ? file.integer("sliding_window", kMaxWindow) : kWindow;
  for (std::size_t i = 0; i < has_window.size(); ++i) {
    AttentionConfig& attention = config.layers[i].attention;
    attention.head_dim = sizes[i].head_dim;
    attention.num_kv_heads = sizes[i].num_kv_heads;
    attention.window = has_window[i] ? window : 0;
    attention.rope = has_window[i] ? ropes.sliding : ropes.full;
    attention.values_are_keys = has_equal_values && !has_window[i];
    check_sizes(file, attention, i);
    const auto first =
        static_cast<std::size_t>(std::ranges::find(has_window, bool{has_window[i]}) - has_window.begin());
    if (sizes[i] != sizes[first]) {
      throw file.refuse("layers ", first, " and ", i,
                        " have the same kind of attention, and heads of different sizes: ",
                        "per_layer_config must give them the same");
    }
  }
}

// The last layers use the keys and values of the last layer before them that has the same kind of attention.
void share_keys(const ConfigSection& file, ModelConfig& config) {
  constexpr const char* kKey = "num_kv_shared_layers";
  const std::int64_t num_shared = file.has(kKey) ? file.count(kKey, config.num_layers()) : 0;
  const std::int64_t first = config.num_layers() - num_shared;
  const bool is_wider = file.boolean("use_double_wide_mlp", false);
  for (std::int64_t i = first; i < config.num_layers(); ++i) {
    AttentionConfig& attention = config.layers[i].attention;
    std::int64_t source = first - 1;
    while (source >= 0 && (config.layers[source].attention.window > 0) != (attention.window > 0)) --source;
    if (source < 0) {
      throw file.refuse(kKey, " is ", num_shared, ", but no layer before these has the attention of layer ", i,
                        ", whose keys it could use");
    }
    attention.keys_of_layer = source;
    attention.values_are_keys = false;
    if (is_wider) config.layers[i].mlp.intermediate *= 2;
  }
}

void read_per_layer_input(const ConfigSection& file, const ModelConfig& config, DecoderLayerConfig& layer) {
  constexpr const char *kWidth = "hidden_size_per_layer_input", *kVocabulary = "vocab_size_per_layer_input";
  constexpr std::int64_t kUsualWidth = 256, kMaxVocabulary = std::int64_t{1} << 24;
  PerLayerInputConfig input{
      .width = file.has(kWidth)       ? file.count(kWidth, kMaxWidth)
               : file.is_null(kWidth) ? 0
                                      : kUsualWidth,
      .vocabulary = file.has(kVocabulary) ? file.integer(kVocabulary, kMaxVocabulary) : kUsualVocabulary};
  if (input.width == 0) return;
  if (input.vocabulary < config.vocabulary) {
    throw file.refuse(kVocabulary, " is ", input.vocabulary, ", but must be at least vocab_size, ", config.vocabulary,
                      ": each token needs a row");
  }
  layer.per_layer_input = input;
}

// Experts and a dense MLP both treat every token. In this description the MLP is an expert that all tokens use.
void add_experts(const ConfigSection& file, MlpConfig& mlp) {
  ExpertsConfig experts;
  experts.num = file.integer("num_experts", kMaxExperts);
  experts.per_token = file.integer("top_k_experts", experts.num);
  experts.router = ExpertsConfig::Router::kScaledInput;
  experts.normalises = true;
  experts.name = "experts";
  experts.router_name = "router.proj";
  experts.norm = "pre_feedforward_layernorm_2";
  experts.post_norm = "post_feedforward_layernorm_2";
  experts.shared =
      SharedExpertConfig{.name = "mlp", .intermediate = mlp.intermediate, .post_norm = "post_feedforward_layernorm_1"};
  mlp.intermediate = file.integer("moe_intermediate_size", kMaxInner);
  mlp.experts = experts;
}

void read_gemma4(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_gemma_layer(file, kUsualVocabulary, config);
  config.norm = NormKind::kUnrounded;
  if (file.text("use_bidirectional_attention", "vision") != "vision")
    throw file.refuse("use_bidirectional_attention is not 'vision': models that embed texts are not supported");
  layer.attention.scale = 1;
  layer.attention.normalises_values = true;
  layer.has_scalar = true;
  read_per_layer_input(file, config, layer);
  add_layers(file, layer, config);
  read_attention(file, config);
  share_keys(file, config);
  file.knows({"num_experts", "top_k_experts", "moe_intermediate_size", "vocab_size_per_layer_input"});
  if (!file.boolean("enable_moe_block", false)) return;
  for (DecoderLayerConfig& each : config.layers) add_experts(file, each.mlp);
}

}  // namespace

constexpr Family kGemma4TextFamily{.model_type = "gemma4_text", .read = read_gemma4};

constexpr Wrapper kGemma4Wrapper{.model_type = "gemma4",
                                 .text_type = "gemma4_text",
                                 .body_in_files = kTextInWrapper,
                                 .head_in_files = {},
                                 .head_in_memory = {}};

}  // namespace rp
