// model_files/config/common_config.h
// Reads what config.json says in the same way for every family. The families call these and then say what is theirs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_files/config/config_section.h"
#include "model_files/config/model_config.h"

namespace rp {

inline constexpr std::int64_t kMaxInner = std::int64_t{1} << 22;  // intermediate size
inline constexpr std::int64_t kMaxWindow = std::int64_t{1} << 31;
inline constexpr std::int64_t kMaxLayers = 10'000;

// What a key means that config.json lacks. (A null means none, which for heads is as many as queries have.)
struct FamilyDefaults {
  std::int64_t num_heads = 0;     // 0: the file must say
  std::int64_t num_kv_heads = 0;  // 0: as many as query heads
  std::int64_t head_dim = 0;      // 0: hidden / num_heads
  double norm_epsilon = 1e-6;
  double rope_theta = 10'000;
  bool tied_head = false;
  std::int64_t padding_id = -1;  // -1: none
  std::int64_t max_positions = 2048;
  std::int64_t vocabulary = 0;  // 0: the file must say
  const char* activation_key = "hidden_act";
  const char* activation = "silu";  // the only one
  bool rope_by_type = false;        // rotary parameters are left to read_ropes_by_type()
};

// Absent: the file says nothing.
[[nodiscard]] std::optional<DType> read_dtype(const ConfigSection& file);

// The method by which weights are quantised; empty: they are not.
[[nodiscard]] std::string read_quantization(const ConfigSection& file);

// Fills `config` except its family and its layers, and gives a layer with the attention's sizes and rope, and an MLP's
// width if the file has intermediate_size. Throws rp::Error (kBadInput) naming the file, the key and what it must be.
[[nodiscard]] DecoderLayerConfig read_common(const ConfigSection& file, const FamilyDefaults& defaults,
                                             ModelConfig& config);

// What read_common() leaves out for families whose layers rotate differently by their type: "full_attention" and
// "sliding_attention" of the file's rope_parameters; or, as files had it before transformers 5, rope_theta and
// rope_scaling for full attention, and for windows rotation without scaling, by `local_theta_key` (null: by rope_theta,
// too).
struct RopesByType {
  RopeConfig full{}, sliding{};
};
[[nodiscard]] RopesByType read_ropes_by_type(const ConfigSection& file, const RopesByType& defaults,
                                             const char* local_theta_key, std::int64_t max_positions);

// num_hidden_layers times `layer`.
void add_layers(const ConfigSection& file, const DecoderLayerConfig& layer, ModelConfig& config);

// "full_attention" or "sliding_attention" for each layer. Empty: the file has no layer_types.
[[nodiscard]] std::vector<std::string> read_layer_types(const ConfigSection& file, std::int64_t num_layers);

// Layers that slide have the file's sliding_window, or `otherwise` where it has none: those that layer_types calls so,
// else those of which slides(layer) is true.
template <typename Slides>
void read_windows(const ConfigSection& file, ModelConfig& config, const Slides& slides, std::int64_t otherwise = 0) {
  const std::vector<std::string> types = read_layer_types(file, config.num_layers());
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    const auto place = static_cast<std::size_t>(i);
    if (types.empty() ? !slides(i) : types[place] == "full_attention") continue;
    const bool has_one = file.has("sliding_window") || otherwise == 0;
    config.layers[place].attention.window = has_one ? file.integer("sliding_window", kMaxWindow) : otherwise;
  }
}

// As Qwen's dense classes do: only with use_sliding_window, and without layer_types from layer max_window_layers on.
void read_qwen_windows(const ConfigSection& file, ModelConfig& config);

// Their number, which is under `number_key`, how many of them a token has, and with output_router_logits the
// coefficient of the auxiliary loss.
[[nodiscard]] ExpertsConfig read_experts(const ConfigSection& file, const char* number_key);

}  // namespace rp
