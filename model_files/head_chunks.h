// model_files/head_chunks.h
// Tokens whose logits exist at a time in the loss of a language model. models/ computes in these chunks, and says why
// they are as long; layer_costs() reckons with them.
#pragma once

#include <cstdint>

namespace rp {

inline constexpr std::int64_t kHeadChunkTokens = 512;  // on the processor
inline constexpr std::int64_t kGpuHeadChunkTokens = 2048;

}  // namespace rp
