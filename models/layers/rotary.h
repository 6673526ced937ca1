// models/layers/rotary.h
// The angles of the rotary position embedding.
#pragma once

#include <cstdint>
#include <optional>

#include "model_files/config/model_config.h"
#include "models/layers/ops.h"

namespace rp::models {

// Radians per position of each pair of a head, fp32 [d / 2]: theta^(-2i/d), stretched as the kind says (transformers'
// ROPE_INIT_FUNCTIONS). REQUIRES: a kind other than kNone.
[[nodiscard]] at::Tensor rotary_frequencies(const RopeConfig& rope, std::int64_t head_dim);

// The table for positions 0 … length - 1, where the frequencies are; cosine and sine are multiplied by `factor` before
// they are rounded. On a GPU one kernel fills it: cheap enough to make it again for each forward, where it is released
// along with the graph.
[[nodiscard]] RotaryTable make_rotary_table(const at::Tensor& frequencies, std::int64_t length, at::ScalarType dtype,
                                            double factor);

// `table` with row p, of position p, multiplied by 1 + growth * ln(1 + floor(p / positions)), which is rounded to
// `dtype` first: what rotates by it grows with its position (AttentionConfig::query_growth). Absent: no row grows.
[[nodiscard]] std::optional<RotaryTable> growing_table(const RotaryTable& table, double growth, std::int64_t positions,
                                                       at::ScalarType dtype);

// The rows of `table` for these positions [b, t]: one for each position of the batch.
[[nodiscard]] RotaryTable rotary_table_at(const RotaryTable& table, const at::Tensor& positions_bt);

}  // namespace rp::models
