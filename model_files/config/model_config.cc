#include "model_files/config/model_config.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "common/checked_files/json_file.h"
#include "model_files/config/common_config.h"
#include "model_files/config/config_section.h"
#include "model_files/config/embedded_files.h"
#include "model_files/config/families/family.h"
#include "model_files/config/layer_border.h"
#include "model_files/config/linear_shapes.h"
#include "model_files/config/nearest_family.h"
#include "model_files/config/quantization_config.h"

namespace rp {
namespace {

using nlohmann::json;

constexpr std::string_view kPresetPrefix = "preset:";

const json& presets() {
  static const json kPresets = parse_json_file("presets.json", embedded_presets());
  return kPresets;
}

// Reads the model of a family from `file`, whose model_type is `type`. Throws as
// read_model_config() does.
ModelConfig config_of_family(const ConfigSection& file, const std::string& type, std::string name) {
  for (const Family* family : kFamilies) {
    if (family->model_type != type) continue;
    ModelConfig config{.name = std::move(name), .family = type};
    family->read(file, config);
    return config;
  }
  std::vector<std::string> types;
  for (const Family* family : kFamilies) types.emplace_back(family->model_type);
  for (const Wrapper* wrapper : kWrappers) types.emplace_back(wrapper->model_type);
  std::sort(types.begin(), types.end());
  if (type.empty()) throw file.refuse("has no model_type; the supported ones are ", list_of(types));
  throw file.refuse("model_type is ", quoted_name(type), ", which is not supported; ", nearest_family(file, type),
                    "; the supported ones are ", list_of(types));
}

// Reads the text part. Settings that apply to the whole model are outside of text_config.
ModelConfig config_of_wrapper(const ConfigSection& file, const Wrapper& wrapper, std::string name) {
  if (!file.has("text_config"))
    throw file.refuse("has no text_config, which a model of type ", quoted_name(wrapper.model_type), " must have");
  const ConfigSection text = file.section("text_config");
  ModelConfig config =
      config_of_family(text, text.text("model_type", std::string(wrapper.text_type).c_str()), std::move(name));
  config.wrapper = wrapper.model_type;
  config.file_names = {.body = std::string(wrapper.body_in_files), .head = std::string(wrapper.head_in_files)};
  config.module_names = {.body = std::string(wrapper.body_in_memory), .head = std::string(wrapper.head_in_memory)};
  config.tied_head = file.boolean("tie_word_embeddings", wrapper.tied_head);
  if (const std::optional<DType> dtype = read_dtype(file)) config.dtype = dtype;
  read_quantization(file, config);
  return config;
}

// Names that differ only after their last '-' are joined: "gemma3-1b, -4b".
std::string list_of_presets() {
  std::string list, last_stem;
  for (const std::string& name : preset_names()) {
    const std::size_t dash = std::min(name.rfind('-'), name.size());
    const std::string stem = name.substr(0, dash);
    const bool is_joined = stem == last_stem && dash < name.size();
    list += cat(list.empty() ? "" : ", ", is_joined ? name.substr(dash) : name);
    last_stem = stem;
  }
  return list;
}

// Each value alone is within its bounds, but together they could still describe more parameters
// than a 64-bit number can count.
void check_size(const ConfigSection& file, const ModelConfig& config) {
  constexpr double kMaxParameters = 1e15;
  const auto product = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  double parameters = 2 * product(config.vocabulary, config.hidden);
  for (const DecoderLayerConfig& layer : config.layers) {
    for (const LinearShape& linear : linears_of(layer, config.hidden)) {
      parameters += product(linear.out, linear.in) * static_cast<double>(std::max<std::int64_t>(linear.num_experts, 1));
    }
    if (layer.per_layer_input) parameters += product(layer.per_layer_input->vocabulary, layer.per_layer_input->width);
  }
  if (parameters > kMaxParameters)
    throw file.refuse("describes a model of ", parameters, " parameters; at most ", kMaxParameters, " are supported");
}

ModelConfig config_of(const ConfigSection& file, std::string name) {
  const std::string type = file.text("model_type", "");
  const auto* wrapper = std::ranges::find(kWrappers, type, &Wrapper::model_type);
  ModelConfig config = wrapper != std::end(kWrappers) ? config_of_wrapper(file, **wrapper, std::move(name))
                                                      : config_of_family(file, type, std::move(name));
  check_size(file, config);
  return config;
}

// A line of values separated by spaces.
class Line {
 public:
  Line() { text_ << std::hexfloat; }
  template <typename... Values>
  Line& add(const Values&... values) {
    ((text_ << values << ' '), ...);
    return *this;
  }
  [[nodiscard]] std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

void add_rope(Line& line, const RopeConfig& rope) {
  line.add("rope", static_cast<int>(rope.kind), rope.theta, rope.rotated_part, rope.factor, rope.original_positions,
           rope.low_freq_factor, rope.high_freq_factor, rope.beta_fast, rope.beta_slow, rope.truncates,
           rope.attention_factor, rope.rounds_table);
}

void add_attention(Line& line, const AttentionConfig& attention) {
  line.add("attention", attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.scale,
           attention.window, attention.qkv_bias, attention.output_bias, static_cast<int>(attention.head_norm),
           attention.has_sinks, attention.has_output_gate, attention.query_growth, attention.query_growth_positions,
           attention.normalises_values, attention.values_are_keys, attention.keys_of_layer.value_or(-1));
  add_rope(line, attention.rope);
}

void add_latent_attention(Line& line, const LatentAttentionConfig& attention) {
  line.add("latent_attention", attention.num_heads, attention.query_rank, attention.kv_rank, attention.plain_dim,
           attention.rotated_dim, attention.value_dim, attention.scale, attention.has_bias, attention.pairs_neighbours,
           attention.norm_epsilon);
  add_rope(line, attention.rope);
}

void add_delta_net(Line& line, const DeltaNetConfig& net) {
  line.add("delta_net", net.num_key_heads, net.num_value_heads, net.key_dim, net.value_dim, net.taps);
}

void add_border(Line& line, const LayerBorder& border) {
  line.add("border", border.has_tokens);
  for (const std::int64_t source : border.key_layers) line.add(source);
}

void add_mixer(Line& line, const DecoderLayerConfig& layer) {
  if (layer.delta_net) return add_delta_net(line, *layer.delta_net);
  if (layer.latent_attention) return add_latent_attention(line, *layer.latent_attention);
  add_attention(line, layer.attention);
}

void add_mlp(Line& line, const MlpConfig& mlp) {
  line.add("mlp", mlp.intermediate, static_cast<int>(mlp.activation), mlp.has_bias);
  if (!mlp.experts) return;
  const ExpertsConfig& experts = *mlp.experts;
  line.add("experts", experts.num, experts.per_token, static_cast<int>(experts.router), experts.normalises,
           experts.num_groups, experts.groups_per_token, experts.weight_scale, experts.balance_coefficient,
           experts.name, experts.router_name, experts.norm, experts.post_norm, experts.is_interleaved);
  if (experts.shared) {
    line.add("shared", experts.shared->name, experts.shared->intermediate, experts.shared->post_norm,
             experts.shared->has_gate);
  }
}

}  // namespace

std::string text_of_layer(const ModelConfig& config, std::int64_t layer) {
  Line line;
  line.add(config.family, config.wrapper, config.hidden, config.vocabulary, config.max_sequence_length,
           config.padding_id, config.norm_epsilon, static_cast<int>(config.norm), config.embedding_scale,
           config.logit_softcap, config.tied_head, config.dtype ? dtype_name(*config.dtype) : "none",
           config.quantization, config.quantised_format ? static_cast<int>(*config.quantised_format) : -1);
  for (const std::string& name : config.unquantised_layers) line.add(name);
  if (layer == 0) add_border(line, border_above(config, 0));
  if (layer == 0 || layer > config.num_layers()) return line.add("layer", layer).text();
  const DecoderLayerConfig& decoder = config.layers[layer - 1];
  add_mixer(line, decoder);
  add_mlp(line, decoder.mlp);
  line.add("norms", decoder.attention_norm, decoder.attention_post_norm, decoder.mlp_norm, decoder.mlp_post_norm,
           decoder.has_scalar);
  if (decoder.per_layer_input) {
    line.add("per_layer_input", decoder.per_layer_input->width, decoder.per_layer_input->vocabulary);
  }
  add_border(line, border_above(config, layer - 1));
  add_border(line, border_above(config, layer));
  return line.text();
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets().items()) names.push_back(name);
  return names;
}

ModelConfig preset_config(const std::string& name) {
  if (!presets().contains(name)) {
    throw Error(ExitCode::kUsage, cat("there is no preset ", quoted_name(name), did_you_mean(name, preset_names()),
                                      "; there are ", list_of_presets(), "; others: a folder with a config.json"));
  }
  const std::filesystem::path place = "presets.json: " + name;
  return config_of(ConfigSection(place, presets().at(name)), name);
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;
  const std::filesystem::path path = folder / kConfigFile;
  const json object = read_json_file(path, kMaxConfigBytes);
  // "model/" has an empty last component.
  const std::filesystem::path named = folder.has_filename() ? folder : folder.parent_path();
  return config_of(ConfigSection(path, object), named.filename().string());
}

ModelConfig config_of_model(const std::string& folder_or_preset) {
  if (folder_or_preset.starts_with(kPresetPrefix)) return preset_config(folder_or_preset.substr(kPresetPrefix.size()));
  return std::filesystem::is_directory(folder_or_preset) ? read_model_config(folder_or_preset)
                                                         : preset_config(folder_or_preset);
}

}  // namespace rp
