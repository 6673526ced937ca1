// model_files/config/common_config.h
// Reads the parts of config.json that all families have in common. The reader of each family calls
// these functions and adds what is particular to the family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model_files/config/config_section.h"
#include "model_files/config/model_config.h"

namespace rp {

inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;  // hidden size, number of heads, all heads together
inline constexpr std::int64_t kMaxHeadDim = 4096;
inline constexpr std::int64_t kMaxInner = std::int64_t{1} << 22;  // intermediate size
inline constexpr std::int64_t kMaxWindow = std::int64_t{1} << 31;
inline constexpr std::int64_t kMaxHiddenLayers = 10'000;
inline constexpr std::int64_t kMaxExperts = 65'536;

// The values of keys that config.json lacks. A null has other effects: for pad_token_id it means no
// padding token, for num_key_value_heads as many as query heads, for head_dim hidden / num_heads.
struct FamilyDefaults {
  std::int64_t num_heads = 0;     // 0: the file must have it
  std::int64_t num_kv_heads = 0;  // 0: as many as query heads
  std::int64_t head_dim = 0;      // 0: hidden / num_heads
  double norm_epsilon = 1e-6;
  double rope_theta = 10'000;
  bool tied_head = false;
  std::int64_t padding_id = -1;  // -1: none
  std::int64_t max_positions = 2048;
  std::int64_t vocabulary = 0;  // 0: the file must have it
  const char* activation_key = "hidden_act";
  const char* activation = "silu";       // the only supported value
  bool rope_by_type = false;             // leaves the rotary parameters to read_ropes_by_type()
  std::optional<double> rotated_part{};  // nullopt: heads can only be rotated as a whole
};

// Returns the dtype of the weights; nullopt if the file does not have one.
[[nodiscard]] std::optional<DType> read_dtype(const ConfigSection& file);

// Fills `config` except its family and its layers. Returns a layer that has the attention's sizes
// and rope, and the MLP's width if the file has intermediate_size. Throws rp::Error (kBadInput)
// naming the file, the key and what it must be.
[[nodiscard]] DecoderLayerConfig read_common(const ConfigSection& file, const FamilyDefaults& defaults,
                                             ModelConfig& config);

// Returns YaRN's m(factor, scale), by which a stretched context raises the scores (arXiv 2309.00071).
[[nodiscard]] double yarn_growth(double factor, double scale);

// The rotary parameters of families whose layers rotate differently by type, which read_common()
// leaves out. They are read from "full_attention" and "sliding_attention" of the file's
// rope_parameters. In files from before transformers 5, full attention uses rope_theta and
// rope_scaling; layers with a window rotate without scaling and use the theta under
// `local_theta_key` (null: also rope_theta).
struct RopesByType {
  RopeConfig full{}, sliding{};
};
[[nodiscard]] RopesByType read_ropes_by_type(const ConfigSection& file, const RopesByType& defaults,
                                             const char* local_theta_key, std::int64_t max_positions);

// Adds num_hidden_layers copies of `layer`.
void add_layers(const ConfigSection& file, const DecoderLayerConfig& layer, ModelConfig& config);

// Returns "full_attention" or `other_type` for each layer; empty if the file has no layer_types.
[[nodiscard]] std::vector<std::string> read_layer_types(const ConfigSection& file, std::int64_t num_layers,
                                                        std::string_view other_type = "sliding_attention");

// Sets the window of each layer that has one to the file's sliding_window, or to `otherwise` if the
// file has none. These are the layers that layer_types calls "sliding_attention"; without
// layer_types, those for which slides(layer) is true.
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

// Sets windows as Qwen's dense classes do: only if use_sliding_window is true, and without
// layer_types for all layers from max_window_layers on.
void read_qwen_windows(const ConfigSection& file, ModelConfig& config);

// Reads the number of experts, which is stored under `number_key`, the number of experts that a
// token uses, and, if output_router_logits is true, the coefficient of the auxiliary loss.
[[nodiscard]] ExpertsConfig read_experts(const ConfigSection& file, const char* number_key);

}  // namespace rp
