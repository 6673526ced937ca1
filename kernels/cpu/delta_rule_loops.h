// kernels/cpu/delta_rule_loops.h
// The forward pass of the gated delta rule. Included by one source per instruction set
// (vector16.h).
#pragma once

#include "kernels/cpu/delta_chunk.h"

namespace rp::models {
namespace {

struct ForwardScratch {
  RP_INLINE ForwardScratch(Scratch& scratch, std::int64_t key_size, std::int64_t value_size, std::int64_t values)
      : chunk(scratch, key_size, value_size),
        scaled_k(scratch.matrix(kDeltaChunk, key_size)),
        o(scratch.matrix(kDeltaChunk, value_size)),
        first_state(scratch.matrix(key_size, value_size)),
        state_size(whole_lanes(key_size) * first_state.stride) {
    scratch.numbers((values - 1) * state_size);
  }
  [[nodiscard]] RP_INLINE Matrix state(std::int64_t value) const {
    return {first_state.data + value * state_size, first_state.stride};
  }

  Chunk chunk;
  Matrix scaled_k;  // diag(exp(c_last - c)) K
  Matrix o;
  Matrix first_state;  // the states of all value heads follow each other
  std::int64_t state_size;
};

// Returns where the state of a value head at the start of a chunk other than the first is kept.
RP_INLINE float* kept_state(const DeltaHead& a, std::int64_t chunk, std::int64_t value) {
  return a.states + (chunk - 1) * a.states_stride + value * a.key_size * a.value_size;
}

template <typename T>
void run_chunk(const DeltaHead& a, const DeltaOutput& output, std::int64_t number_of_chunk, std::int64_t value,
               ForwardScratch& s) {
  const Tokens tokens = tokens_of(a, number_of_chunk);
  const Matrix state = s.state(value);
  const std::int64_t n = tokens.count, columns = whole_lanes(a.value_size);
  Chunk& chunk = s.chunk;
  load_values<T>(a, tokens, value, state, chunk);
  if (!tokens.is_first) {
    multiply(plain(chunk.q), state, s.o, {n, columns, a.key_size});
    for (std::int64_t i = 0; i < n; ++i) scale_row(s.o.row(i), chunk.from_start[i], s.o.row(i), columns);
  }
  multiply(plain(chunk.weights), chunk.u, s.o, {n, columns, n}, tokens.is_first ? 0.0F : 1.0F, Triangle::kLowerLeft);
  T* o = static_cast<T*>(output.o) + tokens.first * output.stride + value * a.value_size;
  for (std::int64_t i = 0; i < n; ++i) store_row(s.o.row(i), 1.0F, o + i * output.stride, a.value_size);
  if (tokens.is_last) return;
  for (std::int64_t i = 0; i < n; ++i) {
    scale_row(chunk.k.row(i), chunk.to_end[i], s.scaled_k.row(i), whole_lanes(a.key_size));
  }
  multiply(transposed(s.scaled_k), chunk.u, state, {a.key_size, columns, n}, tokens.is_first ? 0.0F : chunk.across);
  if (a.states == nullptr) return;
  float* kept = kept_state(a, number_of_chunk + 1, value);
  for (std::int64_t i = 0; i < a.key_size; ++i) store_row(state.row(i), 1.0F, kept + i * a.value_size, a.value_size);
}

template <typename T>
void run_delta_head(const DeltaHead& a, const DeltaOutput& output) {
  Scratch scratch(a.scratch);
  ForwardScratch s(scratch, a.key_size, a.value_size, a.values);
  for (std::int64_t chunk = 0; chunk < num_chunks(a); ++chunk) {
    load_keys<T>(a, tokens_of(a, chunk), s.chunk);
    for (std::int64_t value = 0; value < a.values; ++value) run_chunk<T>(a, output, chunk, value, s);
  }
}

}  // namespace
}  // namespace rp::models
