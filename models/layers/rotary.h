// models/layers/rotary.h
// Computes the angles of the rotary position embedding.
#pragma once

#include <cstdint>
#include <optional>

#include "model_files/config/model_config.h"
#include "models/layers/ops.h"

namespace rp::models {

// Returns by how many radians each pair of a head's elements turns per position, fp32 [d / 2]:
// theta^(-2i/d), stretched as the kind specifies (transformers' ROPE_INIT_FUNCTIONS). REQUIRES: a
// kind other than kNone.
[[nodiscard]] at::Tensor rotary_frequencies(const RopeConfig& rope, std::int64_t head_dim);

// Returns the table for positions 0 … length - 1, on the device of the frequencies. Cosine and sine
// are multiplied by `factor` before they are rounded. On a GPU one kernel fills the table. This is
// fast enough to be repeated in each forward pass, so the table can be released together with the
// graph.
[[nodiscard]] RotaryTable make_rotary_table(const at::Tensor& frequencies, std::int64_t length, at::ScalarType dtype,
                                            double factor);

// Returns `table` with the row of each position p multiplied by 1 + growth * ln(1 + floor(p /
// positions)), rounded to `dtype`. So the queries that are rotated by this table grow with their
// position (AttentionConfig::query_growth). Returns nullopt if no row grows.
[[nodiscard]] std::optional<RotaryTable> growing_table(const RotaryTable& table, double growth, std::int64_t positions,
                                                       at::ScalarType dtype);

// Returns the rows of `table` for these positions [b, t], one for each position of the batch.
[[nodiscard]] RotaryTable rotary_table_at(const RotaryTable& table, const at::Tensor& positions_bt);

// Makes the tables of one layer. On the CPU it keeps the last one, because microbatches usually have
// the same length and dtype. On a GPU it keeps none, because a stored table would occupy memory for
// every layer.
class RotaryTables {
 public:
  // `head_dim`: the number of elements of a head that are rotated. REQUIRES: a kind other than kNone.
  RotaryTables(const RopeConfig& rope, std::int64_t head_dim);

  // Returns the table for the positions of x [b, t, ...], with its dtype and device.
  [[nodiscard]] RotaryTable of(const at::Tensor& x);

 private:
  const bool rounds_;
  const double factor_;
  at::Tensor frequencies_;  // fp32, one for each rotated pair of a head
  std::optional<RotaryTable> table_{};
  at::ScalarType table_dtype_ = at::kFloat;
};

}  // namespace rp::models
