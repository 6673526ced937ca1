#include "model_files/model_shape.h"

#include <string_view>

#include "model_files/config_section.h"
#include "model_files/decoder_sizes.h"
#include "model_files/embedded_files.h"
#include "model_files/json_file.h"

namespace rp {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxExperts = 65'536;
constexpr std::int64_t kMaxWindow = std::int64_t{1} << 31;
constexpr std::string_view kPresetPrefix = "preset:";

const json& presets() {
  static const json kPresets = parse_json_file("presets.json", embedded_presets());
  return kPresets;
}

void read_experts(const ConfigSection& file, const char* number_key, const char* inner_key, ModelShape& shape) {
  shape.num_experts = file.integer(number_key, kMaxExperts);
  shape.experts_per_token = file.integer("num_experts_per_tok", shape.num_experts);
  shape.intermediate = file.integer(inner_key, kMaxInner);
}

// The blocks that layer_types calls sliding. Without it: what `slides` says of a block.
template <typename Slides>
void read_windows(const ConfigSection& file, ModelShape& shape, Slides slides) {
  const std::vector<std::string> types = file.texts("layer_types");
  if (!types.empty() && types.size() != static_cast<std::size_t>(shape.num_layers)) {
    throw file.refuse("layer_types has ", types.size(), " entries, but num_hidden_layers is ", shape.num_layers);
  }
  for (std::int64_t block = 0; block < shape.num_layers; ++block) {
    const std::string type =
        types.empty() ? (slides(block) ? "sliding_attention" : "full_attention") : types[static_cast<std::size_t>(block)];
    if (type != "full_attention" && type != "sliding_attention") {
      throw file.refuse("layer_types has ", quoted_name(type),
                        "; the supported ones are 'full_attention' and 'sliding_attention'");
    }
    if (type == "full_attention" && shape.windows.empty()) continue;
    shape.windows.resize(static_cast<std::size_t>(shape.num_layers), 0);
    if (type == "sliding_attention")
      shape.windows[static_cast<std::size_t>(block)] = file.integer("sliding_window", kMaxWindow);
  }
}

void read_qwen(const ConfigSection& file, ModelShape& shape) {
  shape.qk_norm = true;
  const bool sliding = file.boolean("use_sliding_window", false);
  // Blocks from max_window_layers on slide.
  const std::int64_t first = sliding && file.has("max_window_layers") ? file.integer("max_window_layers", kMaxWindow) : 0;
  read_windows(file, shape, [&](std::int64_t block) { return sliding && block >= first; });
}

void read_qwen_experts(const ConfigSection& file, ModelShape& shape) {
  read_experts(file, "num_experts", "moe_intermediate_size", shape);
  file.require("decoder_sparse_step", 1);
  if (!file.is_empty("mlp_only_layers")) {
    throw file.refuse(
        "mlp_only_layers names blocks without experts; models of which only some blocks have experts are not supported");
  }
}

ModelShape shape_of(const ConfigSection& file, std::string name) {
  const DecoderSizes sizes = read_decoder_sizes(file);
  ModelShape shape{.name = std::move(name),
                   .num_layers = sizes.num_layers,
                   .hidden = sizes.hidden,
                   .num_heads = sizes.num_heads,
                   .num_kv_heads = sizes.num_kv_heads,
                   .head_dim = sizes.head_dim,
                   .vocabulary = sizes.vocabulary};
  shape.tied_head = file.boolean("tie_word_embeddings", false);
  const std::string type = file.text("model_type", "");
  shape.attention_bias = file.boolean("attention_bias", type == "gpt_oss");
  if (type == "llama") {
    shape.intermediate = file.integer("intermediate_size", kMaxInner);
    shape.mlp_bias = file.boolean("mlp_bias", false);
  } else if (type == "qwen3") {
    shape.intermediate = file.integer("intermediate_size", kMaxInner);
    read_qwen(file, shape);
  } else if (type == "qwen3_moe") {
    read_qwen_experts(file, shape);
    read_qwen(file, shape);
  } else if (type == "gpt_oss") {
    read_experts(file, "num_local_experts", "intermediate_size", shape);
    shape.mlp_bias = true;
    shape.attention_sinks = true;
    read_windows(file, shape, [](std::int64_t block) { return block % 2 == 0; });
  } else {
    throw file.refuse("model_type is ", quoted_name(type),
                      "; the supported ones are 'llama', 'qwen3', 'qwen3_moe' and 'gpt_oss'");
  }
  return shape;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets().items()) names.push_back(name);
  return names;
}

ModelShape preset_shape(const std::string& name) {
  if (!presets().contains(name)) {
    const std::vector<std::string> names = preset_names();
    std::string list;
    for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
    throw Error(ExitCode::kUsage, cat("there is no preset ", quoted_name(name), did_you_mean(name, names), "; there are ",
                                      list, "; any other model: the folder with its config.json"));
  }
  const std::filesystem::path place = "presets.json: " + name;
  return shape_of(ConfigSection(place, presets().at(name)), name);
}

ModelShape read_model_shape(const std::filesystem::path& folder) {
  constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;
  const std::filesystem::path path = folder / "config.json";
  const json object = read_json_file(path, kMaxConfigBytes);
  // "model/" has an empty last part.
  const std::filesystem::path named = folder.has_filename() ? folder : folder.parent_path();
  return shape_of(ConfigSection(path, object), named.filename().string());
}

ModelShape shape_of_model(const std::string& folder_or_preset) {
  if (folder_or_preset.starts_with(kPresetPrefix)) return preset_shape(folder_or_preset.substr(kPresetPrefix.size()));
  return std::filesystem::is_directory(folder_or_preset) ? read_model_shape(folder_or_preset)
                                                         : preset_shape(folder_or_preset);
}

}  // namespace rp
