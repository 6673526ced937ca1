// model_files/head_chunks.h
// Defines the number of tokens whose logits exist at a time in the loss of a language model.
// models/ computes in chunks of this size and explains the choice; layer_costs() assumes such
// chunks.
#pragma once

#include <cstdint>

namespace rp {

inline constexpr std::int64_t kHeadChunkTokens = 512;  // on the CPU
inline constexpr std::int64_t kGpuHeadChunkTokens = 2048;

}  // namespace rp
