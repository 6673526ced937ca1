#include "model_files/decoder_sizes.h"

namespace rp {
namespace {

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;  // hidden size, heads
constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 24;

}  // namespace

DecoderSizes read_decoder_sizes(const ConfigSection& file) {
  DecoderSizes sizes;
  sizes.hidden = file.integer("hidden_size", kMaxWidth);
  sizes.num_layers = file.integer("num_hidden_layers", kMaxLayers);
  sizes.num_heads = file.integer("num_attention_heads", kMaxWidth);
  sizes.num_kv_heads = file.has("num_key_value_heads") ? file.integer("num_key_value_heads", kMaxWidth) : sizes.num_heads;
  sizes.vocabulary = file.integer("vocab_size", kMaxVocabulary);
  if (sizes.num_heads % sizes.num_kv_heads != 0) {
    throw file.refuse("num_key_value_heads ", sizes.num_kv_heads, " does not divide num_attention_heads ", sizes.num_heads);
  }
  if (file.has("head_dim")) {
    sizes.head_dim = file.integer("head_dim", kMaxHeadDim);
  } else {
    if (sizes.hidden % sizes.num_heads != 0) {
      throw file.refuse("has no head_dim, and num_attention_heads ", sizes.num_heads, " does not divide hidden_size ",
                        sizes.hidden);
    }
    sizes.head_dim = sizes.hidden / sizes.num_heads;
  }
  if (sizes.head_dim % 2 != 0 || sizes.head_dim > kMaxHeadDim) {
    throw file.refuse("head_dim is ", sizes.head_dim, ", but must be even (rotary halves) and at most ", kMaxHeadDim);
  }
  if (sizes.num_heads * sizes.head_dim > kMaxWidth) {
    throw file.refuse("num_attention_heads ", sizes.num_heads, " of head_dim ", sizes.head_dim, " are wider than ", kMaxWidth);
  }
  return sizes;
}

}  // namespace rp
