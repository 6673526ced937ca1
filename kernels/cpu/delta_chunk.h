// kernels/cpu/delta_chunk.h
// Computes what the forward and the backward pass of the gated delta rule need of one chunk of
// tokens. Included by one source per instruction set (vector16.h).
//
// Within a chunk, with c_i the sum of the decays of its tokens up to i, and the state S at its
// start:
//   D_ij = exp(c_i - c_j) for j <= i, otherwise 0        L = -strictly lower part of diag(beta) (K K^T * D)
//   (1 - L) U = diag(beta) (V - diag(exp(c)) K S)        P = Q K^T * D
//   O = diag(exp(c)) Q S + P U                           S' = exp(c_last) S + (diag(exp(c_last - c)) K)^T U
// A chunk never crosses the start of a document: each document has chunks of its own, so it has the
// same bits wherever it is.
#pragma once

#include "kernels/cpu/delta_kernels.h"
#include "kernels/cpu/delta_matrix.h"

namespace rp::models {
namespace {

// Added to the sum of squares of a query or key.
constexpr float kLengthEpsilon = 1e-6F;

// A decay below this is treated as this: exp() of it is 0, and sums of it stay finite.
constexpr float kLowestDecay = -1000.0F;

constexpr Words kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Returns the value with only its first `count` lanes, and zero in the others.
RP_INLINE Floats first_of(Floats value, std::int64_t count) {
  const auto lanes = static_cast<std::uint32_t>(count < 0 ? 0 : count < kLanes ? count : kLanes);
  return kLaneNumbers < lanes ? value : Floats{};
}

template <typename T>
RP_INLINE float number(const T* value) {
  return load_some(value, 1, 0.0F)[0];
}
template <typename T>
RP_INLINE void set_number(T* to, float value) {
  store_some(to, all(value), 1);
}

// Reads `rows` rows. The columns up to whole lanes become zero.
template <typename T>
void load_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, const Matrix& to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for_each_sixteen(0, columns, [&](std::int64_t j, std::int64_t n, auto part) {
      store(to.row(i) + j, load(from + i * stride + j, n, 0.0F, part));
    });
  }
}

template <typename T>
void store_row(const float* from, float factor, T* to, std::int64_t columns) {
  for_each_sixteen(0, columns,
                   [&](std::int64_t j, std::int64_t n, auto part) { store(to + j, load(from + j) * factor, n, part); });
}

// Divides rows by their lengths and multiplies them by `scale`. Writes the factors without `scale`.
void normalise(const Matrix& x, std::int64_t rows, std::int64_t columns, float scale, float* factors) {
  for (std::int64_t i = 0; i < rows; ++i) {
    factors[i] = 1.0F / __builtin_sqrtf(dot(x.row(i), x.row(i), columns) + kLengthEpsilon);
    scale_row(x.row(i), factors[i] * scale, x.row(i), columns);
  }
}

// The tokens of a chunk within their document.
struct Tokens {
  std::int64_t first, count;
  bool is_first, is_last;  // chunk of the document
};

RP_INLINE Tokens tokens_of(const DeltaHead& a, std::int64_t chunk) {
  const std::int64_t first = chunk * kDeltaChunk, left = a.length - first;
  return {first, left < kDeltaChunk ? left : kDeltaChunk, chunk == 0, left <= kDeltaChunk};
}

RP_INLINE std::int64_t num_chunks(const DeltaHead& a) { return (a.length + kDeltaChunk - 1) / kDeltaChunk; }

struct Chunk {
  RP_INLINE Chunk(Scratch& scratch, std::int64_t key_size, std::int64_t value_size)
      : q(scratch.matrix(kDeltaChunk, key_size)),
        k(scratch.matrix(kDeltaChunk, key_size)),
        k_t(scratch.matrix(key_size, kDeltaChunk)),
        kk(scratch.matrix(kDeltaChunk, kDeltaChunk)),
        qk(scratch.matrix(kDeltaChunk, kDeltaChunk)),
        q_factors(scratch.numbers(kDeltaChunk)),
        k_factors(scratch.numbers(kDeltaChunk)),
        decays(scratch.matrix(kDeltaChunk, kDeltaChunk)),
        coupling(scratch.matrix(kDeltaChunk, kDeltaChunk)),
        weights(scratch.matrix(kDeltaChunk, kDeltaChunk)),
        recalled(scratch.matrix(kDeltaChunk, value_size)),
        missing(scratch.matrix(kDeltaChunk, value_size)),
        u(scratch.matrix(kDeltaChunk, value_size)),
        beta(scratch.numbers(kDeltaChunk)),
        high(scratch.numbers(kDeltaChunk)),
        low(scratch.numbers(kDeltaChunk)),
        from_start(scratch.numbers(kDeltaChunk)),
        to_end(scratch.numbers(kDeltaChunk)) {}

  // Of the key head.
  Matrix q, k, k_t;              // normalised; K transposed
  Matrix kk, qk;                 // K K^T and Q K^T, on the diagonal and below
  float *q_factors, *k_factors;  // 1 / length
  // Of one value head at a time.
  Matrix decays, coupling, weights;  // D on the diagonal and below; L and P
  Matrix recalled, missing, u;       // K S, V - diag(exp(c)) K S, and U
  float* beta;
  float *high, *low;           // c as a sum of two numbers, because differences of large c matter
  float *from_start, *to_end;  // exp(c) and exp(c_last - c)
  float across = 0;            // exp(c_last)
};

// Computes the part of the chunk that the value heads share.
template <typename T>
void load_keys(const DeltaHead& a, const Tokens& tokens, Chunk& chunk) {
  const std::int64_t n = tokens.count, size = a.key_size;
  load_rows(static_cast<const T*>(a.q) + tokens.first * a.q_stride, a.q_stride, n, size, chunk.q);
  load_rows(static_cast<const T*>(a.k) + tokens.first * a.k_stride, a.k_stride, n, size, chunk.k);
  normalise(chunk.q, n, size, 1.0F / __builtin_sqrtf(static_cast<float>(size)), chunk.q_factors);
  normalise(chunk.k, n, size, 1.0F, chunk.k_factors);
  transpose(chunk.k, n, size, chunk.k_t);
  multiply(plain(chunk.k), chunk.k_t, chunk.kk, {n, n, size}, 0, Triangle::kLowerResult);
  multiply(plain(chunk.q), chunk.k_t, chunk.qk, {n, n, size}, 0, Triangle::kLowerResult);
}

template <typename T>
void load_gates(const DeltaHead& a, const Tokens& tokens, std::int64_t value, Chunk& chunk) {
  const std::int64_t n = tokens.count, at = tokens.first * a.gate_stride + value;
  double total = 0;
  for (std::int64_t i = 0; i < kDeltaChunk; ++i) {
    if (i < n) {
      const float decay = a.decay[at + i * a.gate_stride];
      total += decay < kLowestDecay ? kLowestDecay : decay;
    }
    chunk.high[i] = static_cast<float>(total);
    chunk.low[i] = static_cast<float>(total - chunk.high[i]);
    chunk.beta[i] = i < n ? number(static_cast<const T*>(a.beta) + at + i * a.gate_stride) : 0.0F;
  }
  const float high = chunk.high[n - 1], low = chunk.low[n - 1];
  for (std::int64_t i = 0; i < kDeltaChunk; i += kLanes) {
    store(chunk.from_start + i, exponential(load(chunk.high + i) + load(chunk.low + i)));
    store(chunk.to_end + i, exponential((high - load(chunk.high + i)) + (low - load(chunk.low + i))));
  }
  chunk.across = chunk.from_start[n - 1];
}

// Computes D, L and P. In L and P the rows up to whole tiles, and above the diagonal the columns up
// to whole lanes, become zero. Products may contain anything there: numbers of another chunk.
RP_INLINE void weigh(const Tokens& tokens, Chunk& chunk) {
  for (std::int64_t i = 0; i < whole_tiles(tokens.count); ++i) {
    const std::int64_t columns = i < tokens.count ? i + 1 : 0;
    for (std::int64_t j = 0; j <= i; j += kLanes) {
      const Floats difference = (chunk.high[i] - load(chunk.high + j)) + (chunk.low[i] - load(chunk.low + j));
      const Floats decays = exponential(difference);
      store(chunk.decays.row(i) + j, decays);
      const Floats coupling = -chunk.beta[i] * (load(chunk.kk.row(i) + j) * decays);
      store(chunk.coupling.row(i) + j, first_of(coupling, columns - 1 - j));
      store(chunk.weights.row(i) + j, first_of(load(chunk.qk.row(i) + j) * decays, columns - j));
    }
  }
}

// Computes the part of the chunk that belongs to a value head whose state is `state`.
template <typename T>
void load_values(const DeltaHead& a, const Tokens& tokens, std::int64_t value, const Matrix& state, Chunk& chunk) {
  const std::int64_t n = tokens.count, columns = whole_lanes(a.value_size);
  load_gates<T>(a, tokens, value, chunk);
  weigh(tokens, chunk);
  const T* v = static_cast<const T*>(a.v) + tokens.first * a.v_stride + value * a.value_size;
  load_rows(v, a.v_stride, n, a.value_size, chunk.missing);
  if (!tokens.is_first) {
    multiply(plain(chunk.k), state, chunk.recalled, {n, columns, a.key_size});
    for (std::int64_t i = 0; i < n; ++i) {
      float* row = chunk.missing.row(i);
      for (std::int64_t j = 0; j < columns; j += kLanes) {
        store(row + j, load(row + j) - load(chunk.recalled.row(i) + j) * chunk.from_start[i]);
      }
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    scale_row(chunk.missing.row(i), chunk.beta[i], chunk.u.row(i), columns);
  }
  solve(chunk.coupling, chunk.u, n, columns);
}

}  // namespace
}  // namespace rp::models
