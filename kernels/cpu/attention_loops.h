// kernels/cpu/attention_loops.h
// The loops of layer_kernels.h for attention. Included by one source per instruction set
// (vector16.h).
#pragma once

#include "common/check.h"
#include "kernels/cpu/layer_kernels.h"
#include "kernels/cpu/vector16.h"

namespace rp::models {
namespace {

template <typename T>
void causal_softmax_rows(const CausalSoftmaxRows& a, std::int64_t begin, std::int64_t end) {
  constexpr float kNothing = -__builtin_inff();
  for (std::int64_t row = begin; row < end; ++row) {
    float* scores = a.scores + row * a.stride;
    T* probabilities = static_cast<T*>(a.probabilities) + row * a.stride;
    const std::int64_t visible = a.first_visible + row;
    const std::int64_t first = visible > a.window ? visible - a.window : 0;
    Floats largest_lanes = all(a.sink / a.scale);
    for_each_sixteen(first, visible, [&](std::int64_t i, std::int64_t n, auto part) {
      largest_lanes = larger(load(scores + i, n, kNothing, part), largest_lanes);
    });
    const float shift = largest(largest_lanes) * a.scale;
    Floats sums = {};
    for_each_sixteen(first, visible, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats e = exponential(load(scores + i, n, kNothing, part) * a.scale - shift);
      sums += e;
      store(scores + i, e, n, part);
    });
    const float total = sum(sums) + exponential(all(a.sink - shift))[0];
    a.log_sums[row] = shift + __builtin_logf(total);
    const float factor = 1.0F / total;
    for (std::int64_t i = 0; i < first; ++i) probabilities[i] = T{};
    for_each_sixteen(first, visible, [&](std::int64_t i, std::int64_t n, auto part) {
      store(probabilities + i, load(scores + i, n, 0.0F, part) * factor, n, part);
    });
    for (std::int64_t i = visible; i < a.columns; ++i) probabilities[i] = T{};
  }
}

// Stores two rows of bf16 with their elements interleaved.
RP_INLINE void store_interleaved(Bf16* to, Floats first, Floats second) {
  const Words low = __builtin_convertvector(narrow(first), Words);
  const Words high = __builtin_convertvector(narrow(second), Words);
  *reinterpret_cast<WordsInMemory*>(to) = low | (high << 16);
}

// Returns the value with all lanes zero except those of the queries `first` to `end` - 1. The first
// lane is query `query`.
RP_INLINE Floats masked(Floats value, std::int64_t query, std::int64_t first, std::int64_t end) {
  constexpr Words kIota = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto lane_of = [query](std::int64_t place) {
    const std::int64_t lane = place - query;
    return static_cast<std::uint32_t>(lane < 0 ? 0 : lane < kLanes ? lane : kLanes);
  };
  if (first > query) value = kIota >= lane_of(first) ? value : Floats{};
  if (end < query + kLanes) value = kIota < lane_of(end) ? value : Floats{};
  return value;
}

template <typename T>
void attention_grad_rows(const AttentionGradRows& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t pair = begin; pair < end; ++pair) {
    for (std::int64_t i = 0; i < a.queries; i += kLanes) {
      Floats grad_scores[2] = {};
      for (std::int64_t k = 0; k < 2; ++k) {
        const std::int64_t key = 2 * pair + k;
        const std::int64_t at = key * a.queries + i;
        Floats p = {};
        if (key < a.keys) {
          const std::int64_t first = key - a.first_visible;
          p = masked(exponential(load(a.scores + at) * a.scale - load(a.log_sums + i)), i, first, first + a.window);
          grad_scores[k] = masked(p * (load(a.grads + at) - load(a.deltas + i)) * a.scale, i, first, first + a.window);
        }
        store(static_cast<T*>(a.probabilities) + at, p);
        store(static_cast<T*>(a.grad_scores) + at, grad_scores[k]);
      }
      if constexpr (sizeof(T) == sizeof(Bf16)) {
        store_interleaved(static_cast<Bf16*>(a.grad_scores_pairs) + 2 * (pair * a.queries + i), grad_scores[0],
                          grad_scores[1]);
      }
    }
  }
}

// Processes sixteen rows at a time through registers, so that whole cache lines are read and
// written.
void transpose_words(const void* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, void* to,
                     std::int64_t width, std::int64_t to_stride) {
  for (std::int64_t row = 0; row < width; row += kLanes) {
    const std::int64_t count = rows - row < kLanes ? rows - row : kLanes;
    for (std::int64_t column = 0; column < columns; ++column) {
      WordInMemory* target = static_cast<WordInMemory*>(to) + column * to_stride + row;
      const WordInMemory* source = static_cast<const WordInMemory*>(from) + row * stride + column;
      const std::int64_t room = width - row < kLanes ? width - row : kLanes;
      for (std::int64_t k = 0; k < room; ++k) target[k] = k < count ? source[k * stride] : 0;
    }
  }
}

void pack_matrix(DType dtype, const PackRows& a) {
  RP_ASSERT(dtype == DType::kBFloat16 || dtype == DType::kFloat32);
  if (a.transposed) {
    const std::int64_t to_stride = a.to_stride == 0 ? a.width : a.to_stride;
    // In bf16 a pair of columns is one word.
    const std::int64_t word_columns = dtype == DType::kBFloat16 ? 2 : 1;
    transpose_words(a.from, a.stride / word_columns, a.rows, a.columns / word_columns, a.to, a.width, to_stride);
    return;
  }
  if (dtype == DType::kFloat32) {
    for (std::int64_t row = 0; row < a.width; ++row) {
      float* to = static_cast<float*>(a.to) + row * a.columns;
      const float* from = static_cast<const float*>(a.from) + row * a.stride;
      for (std::int64_t i = 0; i < a.columns; ++i) to[i] = row < a.rows ? from[i] : 0.0F;
    }
    return;
  }
  for (std::int64_t row = 0; row < a.width; row += 2) {
    const Bf16* first = static_cast<const Bf16*>(a.from) + row * a.stride;
    const Bf16* second = first + a.stride;
    Bf16* to = static_cast<Bf16*>(a.to) + row * a.columns;
    const bool has_first = row < a.rows, has_second = row + 1 < a.rows;
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats x = has_first ? load(first + i, n, 0.0F, part) : Floats{};
      const Floats y = has_second ? load(second + i, n, 0.0F, part) : Floats{};
      Bf16 pairs[2 * kLanes];
      store_interleaved(pairs, x, y);
      for (std::int64_t k = 0; k < 2 * n; ++k) to[2 * i + k] = pairs[k];
    });
  }
}

void round_floats(DType dtype, const float* from, void* to, std::int64_t count) {
  RP_ASSERT(dtype == DType::kBFloat16 || dtype == DType::kFloat32);
  for_each_sixteen(0, count, [&](std::int64_t i, std::int64_t n, auto part) {
    const Floats value = load(from + i, n, 0.0F, part);
    dtype == DType::kBFloat16 ? store(static_cast<Bf16*>(to) + i, value, n, part)
                              : store(static_cast<float*>(to) + i, value, n, part);
  });
}

template <typename T>
float dot_of(const void* a, const void* b, std::int64_t count) {
  Floats sums = {};
  for_each_sixteen(0, count, [&](std::int64_t i, std::int64_t n, auto part) {
    sums += load(static_cast<const T*>(a) + i, n, 0.0F, part) * load(static_cast<const T*>(b) + i, n, 0.0F, part);
  });
  return sum(sums);
}

}  // namespace
}  // namespace rp::models
