// Gemma 3: norms before and after both attention and the MLP; five layers with a window to one
// without.
#include <cmath>

#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"
#include "model_files/config/families/gemma.h"

namespace rp {
namespace {

void read_gemma3(const ConfigSection& file, ModelConfig& config) {
  DecoderLayerConfig layer = read_gemma_layer(file, 262'208, config);
  config.norm = NormKind::kOffset;
  if (file.boolean("use_bidirectional_attention", false)) {
    throw file.refuse("use_bidirectional_attention is true: models that embed texts are not supported");
  }
  const double query_scalar = file.has("query_pre_attn_scalar") ? file.number("query_pre_attn_scalar", 1e-3, 1e6) : 256;
  layer.attention.scale = 1 / std::sqrt(query_scalar);
  add_layers(file, layer, config);
  const char* pattern_key = file.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const std::int64_t pattern = file.has(pattern_key) ? file.integer(pattern_key, kMaxHiddenLayers) : 6;
  read_windows(
      file, config, [pattern](std::int64_t i) { return (i + 1) % pattern != 0; }, 4096);
  const RopesByType ropes =
      read_ropes_by_type(file, {{.theta = 1e6}, {.theta = 1e4}}, "rope_local_base_freq", config.max_sequence_length);
  for (DecoderLayerConfig& each : config.layers)
    each.attention.rope = each.attention.window > 0 ? ropes.sliding : ropes.full;
}

}  // namespace

constexpr Family kGemma3TextFamily{.model_type = "gemma3_text", .read = read_gemma3};

constexpr Wrapper kGemma3Wrapper{.model_type = "gemma3", .text_type = "gemma3_text", .head_in_memory = {}};

}  // namespace rp
