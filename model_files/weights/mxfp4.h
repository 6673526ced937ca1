// model_files/weights/mxfp4.h
// Decodes the 4-bit numbers of GPT-OSS's files: MXFP4 of the OCP Microscaling Formats, version 1.0.
#pragma once

#include <cstdint>

namespace rp {

// The number of elements that share a power of two. In files a block has half as many bytes, and
// one byte for its scale.
inline constexpr std::int64_t kMxfp4BlockElements = 32;

// Expands `num_blocks` blocks into 32 bf16 numbers each. Element 2 i is the low half of byte i,
// element 2 i + 1 the high half. A half h with scale s is E2M1(h) * 2^(s - 127), where E2M1 is 0,
// 0.5, 1, 1.5, 2, 3, 4, 6 for h from 0 to 7 and their negatives from 8 to 15. The result is exact,
// except that numbers of 2^128 and more, which need a scale above 252, become infinite.
void decode_mxfp4(const std::uint8_t* blocks, const std::uint8_t* scales, std::int64_t num_blocks, std::uint16_t* bf16);

}  // namespace rp
