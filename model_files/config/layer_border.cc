#include "model_files/config/layer_border.h"

#include <algorithm>

namespace rp {

LayerBorder border_above(const ModelConfig& config, std::int64_t layer) {
  LayerBorder border;
  for (std::int64_t next = layer; next < config.num_layers(); ++next) {
    const DecoderLayerConfig& reader = config.layers[next];
    if (reader.per_layer_input) border.has_tokens = true;
    const std::optional<std::int64_t> source = reader.attention.keys_of_layer;
    if (source && *source < layer) border.key_layers.push_back(*source);
  }
  std::ranges::sort(border.key_layers);
  const auto repeated = std::ranges::unique(border.key_layers);
  border.key_layers.erase(repeated.begin(), repeated.end());
  return border;
}

std::int64_t border_bytes(const ModelConfig& config, std::int64_t layer, std::int64_t element_bytes) {
  const LayerBorder border = border_above(config, layer);
  std::int64_t elements = (border.has_tokens ? 2 : 1) * config.hidden;
  for (const std::int64_t source : border.key_layers) elements += 2 * config.layers[source].attention.kv_width();
  constexpr std::int64_t kIdBytes = 8;
  return elements * element_bytes + (border.has_tokens ? kIdBytes : 0);
}

}  // namespace rp
