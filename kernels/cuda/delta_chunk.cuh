// kernels/cuda/delta_chunk.cuh
// Parts that the kernels of the gated delta rule share: the place of a chunk of tokens, its rows, its
// gates, and the scratch memory.
//
// In a chunk, with c_i the sum of the decays of its tokens up to i:
//   D_ij = exp(c_i - c_j) for tokens j <= i of one document, otherwise 0
//   E_i = exp(c_i) for tokens of the document that began before the chunk, otherwise 0
//   w_i = exp(c_last - c_i) for tokens of the last token's document, otherwise 0
//   L = strictly lower part of diag(beta) (K K^T * D),  P = Q K^T * D
// and with the state S at its start:
//   (1 + L) U = diag(beta) (V - diag(E) K S),  O = diag(E) Q S + P U,  S' = E_last S + (diag(w) K)^T U
// Rows of Q and K are divided by their lengths, and Q also by sqrt(key_size).
#pragma once

#include "kernels/cuda/block_product.cuh"
#include "kernels/gpu_kernels.h"

namespace rp::cuda {

using models::GpuDeltaInputs;

constexpr int kChunk = kProductRows;
static_assert(kChunk == kDeltaChunk, "a product has the rows of one chunk");

__device__ inline std::int64_t num_chunks(const GpuDeltaInputs& in) { return divide_up(in.length, kChunk); }

// The arrays in the scratch memory, one part for each sequence, head and chunk. The first seven are
// those of delta_scratch_floats(), the others those of delta_grad_scratch_floats().
struct DeltaScratch {
  DeltaScratch(const GpuDeltaInputs& in, float* memory) {
    const std::int64_t of_values = in.sequences * in.value_heads * in.chunks();
    const std::int64_t of_keys = in.sequences * in.key_heads * in.chunks();
    const auto take = [&memory](std::int64_t count) {
      float* array = memory;
      memory += count;
      return array;
    };
    inverse = take(of_values * kChunk * kChunk);
    scores = take(of_values * kChunk * kChunk);
    key_products = take(of_keys * kChunk * kChunk);
    high = take(of_values * kChunk);
    low = take(of_values * kChunk);
    q_factors = take(of_keys * kChunk);
    k_factors = take(of_keys * kChunk);
    grad_states = take(of_values * in.key_size * in.value_size);
    u = take(of_values * kChunk * in.value_size);
    grad_u = take(of_values * kChunk * in.value_size);
    sums = take(of_values * num_delta_slices(in) * 2 * kChunk);
    across = take(of_values * num_delta_slices(in));
    grad_q = take(of_keys * kChunk * in.key_size);
    grad_k = take(of_keys * kChunk * in.key_size);
  }

  float* inverse;                // (1 + L)^-1 of a value head: [64, 64]
  float* scores;                 // P of a value head: [64, 64]
  float* key_products;           // K K^T of a key head: [64, 64]
  float *high, *low;             // c as a sum of two numbers, because differences of large c matter: [64]
  float *q_factors, *k_factors;  // 1 / length: [64]
  float* grad_states;            // the gradient of the state at the chunk's end: [key_size, value_size]
  float *u, *grad_u;             // U, and the gradient of diag(beta) (V - diag(E) K S): [64, value_size]
  float* sums;                   // of each slice, <grad_u, V - diag(E) K S> and <grad_u, diag(E) K S>: [slices, 2, 64]
  float* across;                 // of each slice, <S, gradient of S'>
  float *grad_q, *grad_k;        // the gradients of the divided rows: [64, key_size]
};

// A chunk of one sequence and head. The head is a key head or a value head.
struct DeltaPlace {
  std::int64_t sequence, head, chunk;
  std::int64_t token;  // the chunk's first one among those of all sequences
  std::int64_t part;   // of the arrays in the scratch memory
  int count;           // of tokens
};

__device__ inline DeltaPlace delta_place(const GpuDeltaInputs& in, std::int64_t heads, std::int64_t sequence,
                                         std::int64_t head, std::int64_t chunk) {
  const std::int64_t first = chunk * kChunk, left = in.length - first;
  return {sequence,
          head,
          chunk,
          sequence * in.length + first,
          (sequence * heads + head) * num_chunks(in) + chunk,
          static_cast<int>(left < kChunk ? left : kChunk)};
}
__device__ inline DeltaPlace place_of_key(const GpuDeltaInputs& in, std::int64_t sequence, std::int64_t head,
                                          std::int64_t chunk) {
  return delta_place(in, in.key_heads, sequence, head, chunk);
}
__device__ inline DeltaPlace place_of_value(const GpuDeltaInputs& in, std::int64_t sequence, std::int64_t head,
                                            std::int64_t chunk) {
  return delta_place(in, in.value_heads, sequence, head, chunk);
}

// The rows of a chunk in an array of activations: of one head, with `columns` columns. A chunk is
// small enough for indices of 32 bits, which need half the registers.
template <typename T>
struct ChunkRows {
  const T* first;
  int stride, count, columns;

  // Returns an element, or 0 after the last row or column.
  __device__ float operator()(int row, int column) const {
    return row < count && column < columns ? widen(first[row * stride + column]) : 0.0F;
  }
};

template <typename T>
__device__ inline ChunkRows<T> rows_of_head(const void* x, std::int64_t stride, const DeltaPlace& place,
                                            std::int64_t head, std::int64_t size) {
  return {static_cast<const T*>(x) + place.token * stride + head * size, static_cast<int>(stride), place.count,
          static_cast<int>(size)};
}

// The factors of the rows of Q and K of a chunk, Q's with 1 / sqrt(key_size).
struct RowFactors {
  float q[kChunk], k[kChunk];
};

__device__ inline float query_scale(const GpuDeltaInputs& in) { return 1.0F / sqrtf(static_cast<float>(in.key_size)); }

// Fills the factors from the scratch memory. A barrier must follow.
__device__ inline void load_factors(RowFactors& factors, const GpuDeltaInputs& in, const DeltaScratch& scratch,
                                    const DeltaPlace& key) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kChunk) return;
  factors.q[i] = scratch.q_factors[key.part * kChunk + i] * query_scale(in);
  factors.k[i] = scratch.k_factors[key.part * kChunk + i];
}

// The gates of a chunk and value head. Tokens after the chunk's last one have beta, E and w 0 and
// see no token.
struct ChunkGates {
  float beta[kChunk], high[kChunk], low[kChunk];
  float from_start[kChunk], to_end[kChunk];  // E and w
  int first_seen[kChunk];                    // the first token of the document, or of the chunk
  float across;                              // E_last

  // Returns D_ij.
  [[nodiscard]] __device__ float decay(int i, int j) const {
    return j <= i && j >= first_seen[i] ? expf((high[i] - high[j]) + (low[i] - low[j])) : 0.0F;
  }
};

// Fills the gates. A barrier must follow.
template <typename T>
__device__ inline void load_gates(ChunkGates& gates, const GpuDeltaInputs& in, const DeltaScratch& scratch,
                                  const DeltaPlace& value) {
  const int i = static_cast<int>(threadIdx.x), last = value.count - 1;
  if (i >= kChunk) return;
  const auto position = [&](int token) {
    return in.positions == nullptr ? value.chunk * kChunk + token : in.positions[value.token + token];
  };
  const bool is_there = i < value.count;
  const float *high = scratch.high + value.part * kChunk, *low = scratch.low + value.part * kChunk;
  gates.high[i] = high[i];
  gates.low[i] = low[i];
  gates.beta[i] =
      is_there ? widen(static_cast<const T*>(in.beta)[(value.token + i) * in.value_heads + value.head]) : 0.0F;
  const std::int64_t before = is_there ? position(i) : 0;
  gates.first_seen[i] = !is_there ? kChunk : before < i ? i - static_cast<int>(before) : 0;
  gates.from_start[i] = before > i ? expf(high[i] + low[i]) : 0.0F;
  gates.to_end[i] = is_there && last - i <= position(last) ? expf((high[last] - high[i]) + (low[last] - low[i])) : 0.0F;
  if (i == last) gates.across = gates.from_start[i];
}

// Fills the first seven arrays of the scratch memory: for all chunks at once, what does not depend
// on the state.
void weigh_delta_chunks(DType dtype, const GpuDeltaInputs& in, const DeltaScratch& scratch, void* stream);

}  // namespace rp::cuda
