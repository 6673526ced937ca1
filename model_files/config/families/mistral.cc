// Mistral 7B, Nemo, Small: Llama with a window in every layer.
#include "model_files/config/common_config.h"
#include "model_files/config/families/family.h"

namespace rp {
namespace {

void read_mistral(const ConfigSection& file, ModelConfig& config) {
  constexpr std::int64_t kWindow = 4096;  // if the file lacks the key; null means no window
  DecoderLayerConfig layer = read_common(file, {.num_kv_heads = 8, .max_positions = 131'072}, config);
  layer.mlp.intermediate = file.integer("intermediate_size", kMaxInner);
  if (file.has("sliding_window")) {
    layer.attention.window = file.integer("sliding_window", kMaxWindow);
  } else if (!file.is_null("sliding_window")) {
    layer.attention.window = kWindow;
  }
  add_layers(file, layer, config);
}

}  // namespace

constexpr Family kMistralFamily{.model_type = "mistral", .read = read_mistral};

}  // namespace rp
