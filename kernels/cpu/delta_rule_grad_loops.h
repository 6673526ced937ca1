// kernels/cpu/delta_rule_grad_loops.h
// The backward pass of the gated delta rule: chunks in descending order, each of which computes its
// forward values again from the state at its start. Included by one source per instruction set
// (vector16.h).
//
// With dO, the gradient dS' of the state at the chunk's end, and the names of delta_chunk.h:
//   dU = P^T dO + diag(exp(c_last - c)) K dS'            (1 - L)^T dR = dU
//   dL = -strictly lower part of dR U^T                  dP = dO U^T
//   A = diag(beta) (D * dL)                              dV = diag(beta) dR
//   dQ = diag(exp(c)) dO S^T + (dP * D) K
//   dK = (dP * D)^T Q + diag(exp(c_last - c)) U dS'^T + (A + A^T) K - diag(beta exp(c)) dR S^T
//   dS = exp(c_last) dS' + Q^T diag(exp(c)) dO - K^T diag(beta exp(c)) dR
// where -dL is the gradient of the L of delta_chunk.h. Products with S are left out in the first
// chunk of a document, whose S is zero, and those with dS' in the last one.
#pragma once

#include "kernels/cpu/delta_chunk.h"
#include "kernels/cpu/delta_rule_loops.h"

namespace rp::models {
namespace {

struct BackwardScratch {
  RP_INLINE BackwardScratch(Scratch& scratch, std::int64_t key_size, std::int64_t value_size, std::int64_t values)
      : chunk(scratch, key_size, value_size),
        grad_q(scratch.matrix(kDeltaChunk, key_size)),
        grad_k(scratch.matrix(kDeltaChunk, key_size)),
        q_by_k(scratch.matrix(kDeltaChunk, kDeltaChunk)),
        k_by_k(scratch.matrix(kDeltaChunk, kDeltaChunk)),
        part_of_q(scratch.matrix(kDeltaChunk, key_size)),
        by_coupling(scratch.matrix(kDeltaChunk, kDeltaChunk)),
        by_weights(scratch.matrix(kDeltaChunk, kDeltaChunk)),
        grad_o(scratch.matrix(kDeltaChunk, value_size)),
        grad_u(scratch.matrix(kDeltaChunk, value_size)),
        of_recalled(scratch.matrix(kDeltaChunk, value_size)),
        u_t(scratch.matrix(value_size, kDeltaChunk)),
        state(scratch.matrix(key_size, value_size)),
        state_t(scratch.matrix(value_size, key_size)),
        grad_beta(scratch.numbers(kDeltaChunk)),
        grad_decay(scratch.numbers(kDeltaChunk)),
        column_sums(scratch.numbers(kDeltaChunk)),
        from_start(scratch.numbers(kDeltaChunk)),
        to_end(scratch.numbers(kDeltaChunk)),
        first_grad_state(scratch.matrix(key_size, value_size)),
        state_size(whole_lanes(key_size) * first_grad_state.stride) {
    scratch.numbers((values - 1) * state_size);
  }
  [[nodiscard]] RP_INLINE Matrix grad_state(std::int64_t value) const {
    return {first_grad_state.data + value * state_size, first_grad_state.stride};
  }

  Chunk chunk;
  // Of the key head: sums over its value heads.
  Matrix grad_q, grad_k;
  Matrix q_by_k, k_by_k;  // dP * D and A
  // Of one value head at a time.
  Matrix part_of_q;                // diag(exp(c)) dO S^T
  Matrix by_coupling, by_weights;  // dR U^T and dO U^T
  Matrix grad_o, grad_u;           // dO; dU, then dR
  Matrix of_recalled;              // -diag(beta exp(c)) dR, the gradient of K S; before: diag(exp(c_last - c)) U
  Matrix u_t, state, state_t;
  float *grad_beta, *grad_decay, *column_sums;
  float *from_start, *to_end;  // the gradients of the exponents of exp(c) and of exp(c_last - c)
  float across = 0;            // the same for exp(c_last), which S is multiplied by
  Matrix first_grad_state;     // dS of all value heads, which follow each other
  std::int64_t state_size;
};

// Computes dU and then dR.
RP_INLINE void grad_of_u(const Tokens& tokens, std::int64_t key_size, std::int64_t columns, const Matrix& grad_state,
                         BackwardScratch& s) {
  const std::int64_t n = tokens.count;
  const Chunk& chunk = s.chunk;
  if (!tokens.is_last) {
    multiply(plain(chunk.k), grad_state, s.grad_u, {n, columns, key_size});
    for (std::int64_t i = 0; i < n; ++i) {
      s.to_end[i] = chunk.to_end[i] * dot(s.grad_u.row(i), chunk.u.row(i), columns);
      scale_row(s.grad_u.row(i), chunk.to_end[i], s.grad_u.row(i), columns);
    }
  }
  multiply(transposed(chunk.weights), s.grad_o, s.grad_u, {n, columns, n}, tokens.is_last ? 0.0F : 1.0F,
           Triangle::kUpperLeft);
  solve_transposed(chunk.coupling, s.grad_u, n, columns);
}

// Computes what the gradients get through D, L and P. Element (i, j) of D contains the decays of the
// tokens j + 1 to i, so the gradient of a decay is a sum over a rectangle of D. Its columns are
// summed from the last row up.
RP_INLINE void grad_of_weights(const Tokens& tokens, std::int64_t columns, BackwardScratch& s) {
  const std::int64_t n = tokens.count;
  const Chunk& chunk = s.chunk;
  transpose(chunk.u, n, columns, s.u_t);
  multiply(plain(s.grad_u), s.u_t, s.by_coupling, {n, n, columns}, 0, Triangle::kLowerResult);
  multiply(plain(s.grad_o), s.u_t, s.by_weights, {n, n, columns}, 0, Triangle::kLowerResult);
  for (std::int64_t j = 0; j < kDeltaChunk; j += kLanes) store(s.column_sums + j, Floats{});
  for (std::int64_t i = n - 1; i >= 0; --i) {
    Floats of_decay = {}, of_beta = {};
    for (std::int64_t j = 0; j <= i; j += kLanes) {
      const Floats decays = load(chunk.decays.row(i) + j);
      const Floats by_coupling = first_of(load(s.by_coupling.row(i) + j), i - j);
      const Floats by_weights = first_of(load(s.by_weights.row(i) + j), i + 1 - j);
      const Floats by_decays =
          by_coupling * load(chunk.coupling.row(i) + j) + by_weights * load(chunk.weights.row(i) + j);
      const Floats column_sums = load(s.column_sums + j) + first_of(by_decays, i - j);
      store(s.column_sums + j, column_sums);
      of_decay += first_of(column_sums, i - j);
      const Floats a = by_coupling * decays;
      of_beta += first_of(a * load(chunk.kk.row(i) + j), i - j);
      store(s.k_by_k.row(i) + j, load(s.k_by_k.row(i) + j) - a * chunk.beta[i]);
      store(s.q_by_k.row(i) + j, load(s.q_by_k.row(i) + j) + by_weights * decays);
    }
    s.grad_decay[i] = sum(of_decay);
    s.grad_beta[i] = dot(s.grad_u.row(i), chunk.missing.row(i), columns) - sum(of_beta);
  }
}

// Computes what the gradients get through the states at the chunk's start and end, and dS.
RP_INLINE void grad_of_states(const Tokens& tokens, std::int64_t key_size, std::int64_t columns,
                              const Matrix& grad_state, BackwardScratch& s) {
  const std::int64_t n = tokens.count, keys = whole_lanes(key_size);
  const Chunk& chunk = s.chunk;
  if (!tokens.is_last) {
    for (std::int64_t i = 0; i < n; ++i) scale_row(chunk.u.row(i), chunk.to_end[i], s.of_recalled.row(i), columns);
    transpose(grad_state, keys, columns, s.state_t);
    multiply(plain(s.of_recalled), s.state_t, s.grad_k, {n, keys, columns}, 1);
  }
  if (tokens.is_first) return;
  if (!tokens.is_last) s.across = chunk.across * dot(s.state, grad_state, key_size, columns);
  transpose(s.state, keys, columns, s.state_t);
  for (std::int64_t i = 0; i < n; ++i) {
    scale_row(s.grad_o.row(i), chunk.from_start[i], s.grad_o.row(i), columns);
    scale_row(s.grad_u.row(i), -chunk.beta[i] * chunk.from_start[i], s.of_recalled.row(i), columns);
  }
  multiply(plain(s.grad_o), s.state_t, s.part_of_q, {n, keys, columns});
  multiply(plain(s.of_recalled), s.state_t, s.grad_k, {n, keys, columns}, 1);
  for (std::int64_t i = 0; i < n; ++i) {
    s.from_start[i] =
        dot(chunk.q.row(i), s.part_of_q.row(i), keys) + dot(chunk.recalled.row(i), s.of_recalled.row(i), columns);
    for (std::int64_t j = 0; j < keys; j += kLanes) {
      store(s.grad_q.row(i) + j, load(s.grad_q.row(i) + j) + load(s.part_of_q.row(i) + j));
    }
  }
  multiply(transposed(chunk.q), s.grad_o, grad_state, {key_size, columns, n}, tokens.is_last ? 0.0F : chunk.across);
  multiply(transposed(chunk.k), s.of_recalled, grad_state, {key_size, columns, n}, 1);
}

// A decay is part of exp(c) of its token and those after it, and of exp(c_last - c) of those before
// it. Neither sum loses digits by differences of large numbers.
template <typename T>
void store_gate_grads(const Tokens& tokens, T* grad_beta, const DeltaGradients& gradients, std::int64_t value,
                      BackwardScratch& s) {
  double after = s.across, before = 0;
  for (std::int64_t i = tokens.count - 1; i >= 0; --i) {
    after += s.from_start[i];
    s.grad_decay[i] += static_cast<float>(after);
  }
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    const std::int64_t at = (tokens.first + i) * gradients.gate_stride + value;
    gradients.grad_decay[at] = s.grad_decay[i] + static_cast<float>(before);
    before += s.to_end[i];
    set_number(grad_beta + at, s.grad_beta[i]);
  }
}

template <typename T>
void grad_chunk(const DeltaHead& a, const DeltaGradients& gradients, std::int64_t number_of_chunk, std::int64_t value,
                BackwardScratch& s) {
  const Tokens tokens = tokens_of(a, number_of_chunk);
  const std::int64_t n = tokens.count, columns = whole_lanes(a.value_size);
  const Matrix grad_state = s.grad_state(value);
  if (!tokens.is_first) {
    load_rows(kept_state(a, number_of_chunk, value), a.value_size, a.key_size, a.value_size, s.state);
  }
  load_values<T>(a, tokens, value, s.state, s.chunk);
  const std::int64_t at = tokens.first * gradients.value_stride + value * a.value_size;
  load_rows(static_cast<const T*>(gradients.grad_o) + at, gradients.value_stride, n, a.value_size, s.grad_o);
  s.across = 0;
  for (std::int64_t i = 0; i < n; ++i) s.from_start[i] = s.to_end[i] = 0;
  grad_of_u(tokens, a.key_size, columns, grad_state, s);
  grad_of_weights(tokens, columns, s);
  T* grad_v = static_cast<T*>(gradients.grad_v) + at;
  for (std::int64_t i = 0; i < n; ++i) {
    store_row(s.grad_u.row(i), s.chunk.beta[i], grad_v + i * gradients.value_stride, a.value_size);
  }
  grad_of_states(tokens, a.key_size, columns, grad_state, s);
  store_gate_grads(tokens, static_cast<T*>(gradients.grad_beta), gradients, value, s);
}

// Writes the gradients of rows x from those of y = scale * factor * x, where `factor` is 1 / length.
template <typename T>
void store_normalised_grad(const Matrix& grad_y, const Matrix& y, const float* factors, float scale, std::int64_t rows,
                           std::int64_t columns, T* grad_x, std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float along = dot(grad_y.row(i), y.row(i), whole_lanes(columns)) / (scale * scale);
    for_each_sixteen(0, columns, [&](std::int64_t j, std::int64_t n, auto part) {
      const Floats grad = (load(grad_y.row(i) + j) - load(y.row(i) + j) * along) * (scale * factors[i]);
      store(grad_x + i * stride + j, grad, n, part);
    });
  }
}

RP_INLINE void clear(const Matrix& matrix, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; j += kLanes) store(matrix.row(i) + j, Floats{});
  }
}

template <typename T>
void run_delta_head_grad(const DeltaHead& a, const DeltaGradients& gradients) {
  Scratch scratch(a.scratch);
  BackwardScratch s(scratch, a.key_size, a.value_size, a.values);
  const std::int64_t keys = whole_lanes(a.key_size);
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(a.key_size));
  for (std::int64_t chunk = num_chunks(a) - 1; chunk >= 0; --chunk) {
    const Tokens tokens = tokens_of(a, chunk);
    const std::int64_t n = tokens.count;
    load_keys<T>(a, tokens, s.chunk);
    clear(s.grad_q, n, keys);
    clear(s.grad_k, n, keys);
    clear(s.q_by_k, n, whole_lanes(n));
    clear(s.k_by_k, n, whole_lanes(n));
    for (std::int64_t value = 0; value < a.values; ++value) grad_chunk<T>(a, gradients, chunk, value, s);
    multiply(plain(s.q_by_k), s.chunk.k, s.grad_q, {n, keys, n}, 1, Triangle::kLowerLeft);
    multiply(transposed(s.q_by_k), s.chunk.q, s.grad_k, {n, keys, n}, 1, Triangle::kUpperLeft);
    multiply(plain(s.k_by_k), s.chunk.k, s.grad_k, {n, keys, n}, 1, Triangle::kLowerLeft);
    multiply(transposed(s.k_by_k), s.chunk.k, s.grad_k, {n, keys, n}, 1, Triangle::kUpperLeft);
    const std::int64_t at = tokens.first * gradients.key_stride;
    store_normalised_grad(s.grad_q, s.chunk.q, s.chunk.q_factors, scale, n, a.key_size,
                          static_cast<T*>(gradients.grad_q) + at, gradients.key_stride);
    store_normalised_grad(s.grad_k, s.chunk.k, s.chunk.k_factors, 1.0F, n, a.key_size,
                          static_cast<T*>(gradients.grad_k) + at, gradients.key_stride);
  }
}

std::int64_t delta_scratch_floats(std::int64_t key_size, std::int64_t value_size, std::int64_t values) {
  Scratch forward(nullptr), backward(nullptr);
  const ForwardScratch f(forward, key_size, value_size, values);
  const BackwardScratch b(backward, key_size, value_size, values);
  return forward.used() > backward.used() ? forward.used() : backward.used();
}

}  // namespace
}  // namespace rp::models
