// model_files/decoder_sizes.h
// The sizes that config.json gives for every architecture of decoder-only transformers alike.
#pragma once

#include <cstdint>

#include "model_files/config_section.h"

namespace rp {

inline constexpr std::int64_t kMaxInner = std::int64_t{1} << 22;  // intermediate size

// Each is within the bounds that decoder_sizes.cc states, and they fit each other: heads divide, head_dim is even.
struct DecoderSizes {
  std::int64_t hidden = 0;
  std::int64_t num_layers = 0;  // decoder blocks
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads
  std::int64_t head_dim = 0;      // need not be hidden / num_heads
  std::int64_t vocabulary = 0;
};

// Throws rp::Error (kBadInput) naming the file, the key and what it must be.
[[nodiscard]] DecoderSizes read_decoder_sizes(const ConfigSection& file);

}  // namespace rp
