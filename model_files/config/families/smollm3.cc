// SmolLM3: Llama, but every fourth layer does not rotate.
#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

// Returns 1 for each layer that rotates and 0 for each that does not.
std::vector<std::int64_t> read_rotations(const ConfigSection& file, std::int64_t num_layers) {
  constexpr const char* kList = "no_rope_layers";
  std::vector<std::int64_t> rotates = file.integers(kList, 0, 1);
  if (!rotates.empty() && rotates.size() != static_cast<std::size_t>(num_layers)) {
    throw file.refuse(kList, " has ", rotates.size(), " entries, but num_hidden_layers is ", num_layers);
  }
  if (!rotates.empty()) return rotates;
  const std::int64_t interval =
      file.has("no_rope_layer_interval") ? file.integer("no_rope_layer_interval", kMaxHiddenLayers) : 4;
  for (std::int64_t i = 0; i < num_layers; ++i) rotates.push_back((i + 1) % interval == 0 ? 0 : 1);
  return rotates;
}

void read_smollm3(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_common(
      file, {.num_kv_heads = 4, .rope_theta = 2e6, .tied_head = true, .padding_id = 128'004, .max_positions = 32'768},
      config);
  layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  layer.mlp.has_bias = file.boolean("mlp_bias", false);
  layer.attention.qkv_bias = layer.attention.output_bias = file.boolean("attention_bias", false);
  add_layers(file, layer, config);
  const std::vector<std::int64_t> rotates = read_rotations(file, config.num_layers());
  for (std::size_t i = 0; i < rotates.size(); ++i) {
    if (rotates[i] == 0) config.layers[i].attention.rope = {.kind = RopeConfig::Kind::kNone};
  }
  file.knows({"layer_types", "max_window_layers", "no_rope_layer_interval", "sliding_window"});
  if (!file.boolean("use_sliding_window", false)) return;
  read_windows(file, config, [&](std::int64_t i) { return rotates[i] == 0; });
}

}  // namespace

constexpr Family kSmolLm3Family{.model_type = "smollm3", .read = read_smollm3};

}  // namespace rp
