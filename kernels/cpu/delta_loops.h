// kernels/cpu/delta_loops.h
// The loops of delta_kernels.h except the rule itself: convolution, gates and norm. Included by one
// source per instruction set (vector16.h).
#pragma once

#include "kernels/cpu/delta_kernels.h"
#include "kernels/cpu/vector16.h"

namespace rp::models {
namespace {

using Integers = std::int32_t __attribute__((vector_size(64)));

// The number of channels whose intermediate values are kept in the cache at a time.
constexpr std::int64_t kChannelBlock = 256;

// The number of tokens whose contributions to a weight's gradient are summed before they are added
// to the total, so that rounding errors do not grow with the length.
constexpr std::int64_t kTokensPerSum = 64;

// Returns the convolution of one token before it is rounded. `y` and `weight` are at the token and
// at the last tap, and `taps` of them are within the document. The oldest token comes first.
template <typename T, typename Part>
RP_INLINE Floats convolved(const T* y, const float* weight, std::int64_t channels, std::int64_t taps, std::int64_t n,
                           Part part) {
  Floats total = {};
  for (std::int64_t shift = taps - 1; shift >= 0; --shift) {
    total += load(weight - shift * channels, n, 0.0F, part) * load(y - shift * channels, n, 0.0F, part);
  }
  return total;
}

template <typename T>
void convolve(const Convolution& a, std::int64_t begin, std::int64_t end) {
  const float* last_tap = a.weight + (a.taps - 1) * a.channels;
  for (std::int64_t token = 0; token < a.length; ++token) {
    const std::int64_t taps = token + 1 < a.taps ? token + 1 : a.taps;
    const T* y = static_cast<const T*>(a.y) + token * a.channels;
    T* x = static_cast<T*>(a.x) + token * a.channels;
    for_each_sixteen(begin, end, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats value = rounded_to(convolved(y + i, last_tap + i, a.channels, taps, n, part), y);
      store(x + i, value * sigmoid(value), n, part);
    });
  }
}

// The state of a backward pass over a block of channels, from the last token to the first.
struct ConvolutionBlock {
  // The gradients of the unrounded sums of the last tokens visited: token t is at t % taps.
  float grads[kMaxConvolutionTaps][kChannelBlock];
  // The gradients of the weights since they were last added to the total, by shift.
  float weights[kMaxConvolutionTaps][kChannelBlock];
};

template <typename T>
void convolve_grad_token(const ConvolutionGrad& a, ConvolutionBlock& block, std::int64_t token, std::int64_t begin,
                         std::int64_t end) {
  const float* last_tap = a.weight + (a.taps - 1) * a.channels;
  const std::int64_t before = token + 1 < a.taps ? token + 1 : a.taps;
  const std::int64_t after = a.length - token < a.taps ? a.length - token : a.taps;
  const T* y = static_cast<const T*>(a.y) + token * a.channels;
  const T* grad_x = static_cast<const T*>(a.grad_x) + token * a.channels;
  T* grad_y = static_cast<T*>(a.grad_y) + token * a.channels;
  const float* later[kMaxConvolutionTaps];
  for (std::int64_t shift = 0; shift < after; ++shift) later[shift] = block.grads[(token + shift) % a.taps];
  float* own = block.grads[token % a.taps];
  // Tokens are farther apart than the processor looks ahead.
  const std::int64_t back = token > 0 ? a.channels : 0;
  const T* next_y = y - (before - 1) * a.channels - back * (token >= a.taps);
  for_each_sixteen(begin, end, [&](std::int64_t i, std::int64_t n, auto part) {
    const std::int64_t at = i - begin;
    __builtin_prefetch(next_y + i);
    __builtin_prefetch(grad_x + i - back);
    __builtin_prefetch(grad_y + i - back, 1);
    const Floats value = rounded_to(convolved(y + i, last_tap + i, a.channels, before, n, part), y);
    const Floats s = sigmoid(value);
    const Floats grad = load(grad_x + i, n, 0.0F, part) * (s * (1.0F + value * (1.0F - s)));
    store(own + at, grad);
    for (std::int64_t shift = 0; a.grad_weight != nullptr && shift < before; ++shift) {
      float* total = block.weights[shift] + at;
      store(total, load(total) + grad * load(y + i - shift * a.channels, n, 0.0F, part));
    }
    Floats grad_of_y = {};
    for (std::int64_t shift = 0; shift < after; ++shift) {
      grad_of_y += load(last_tap + i - shift * a.channels, n, 0.0F, part) * load(later[shift] + at);
    }
    store(grad_y + i, grad_of_y, n, part);
  });
}

template <typename T>
void convolve_grad(const ConvolutionGrad& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t first = begin; first < end; first += kChannelBlock) {
    const std::int64_t last = end - first < kChannelBlock ? end : first + kChannelBlock;
    ConvolutionBlock block = {};
    for (std::int64_t token = a.length - 1; token >= 0; --token) {
      convolve_grad_token<T>(a, block, token, first, last);
      if (token % kTokensPerSum != 0 || a.grad_weight == nullptr) continue;
      for (std::int64_t shift = 0; shift < a.taps; ++shift) {
        float* total = a.grad_weight + (a.taps - 1 - shift) * a.channels;
        for_each_sixteen(first, last, [&](std::int64_t i, std::int64_t n, auto part) {
          float* sum_of_tokens = block.weights[shift] + (i - first);
          store(total + i, load(total + i, n, 0.0F, part) + load(sum_of_tokens), n, part);
          store(sum_of_tokens, Floats{});
        });
      }
    }
  }
}

// Returns log(x) of normal numbers to 2 units in the last place: x = 2^n m, m in [sqrt(1/2),
// sqrt(2)), a polynomial in m - 1 (the coefficients of Cephes' logf).
RP_INLINE Floats logarithm(Floats x) {
  const Words bits = reinterpret_cast<Words>(x);
  const Floats half = reinterpret_cast<Floats>((bits & 0x007fffffU) | 0x3f000000U);  // in [1/2, 1)
  const Integers exponent = reinterpret_cast<Integers>(bits >> 23) - 126;
  const Integers is_small = reinterpret_cast<Integers>(half < 0.707106781186547524F);  // -1: true
  const Floats n = __builtin_convertvector(exponent + is_small, Floats);
  const Floats r = (is_small != 0 ? half + half : half) - 1.0F;
  Floats p = r * 7.0376836292e-2F - 1.1514610310e-1F;
  p = p * r + 1.1676998740e-1F;
  p = p * r - 1.2420140846e-1F;
  p = p * r + 1.4249322787e-1F;
  p = p * r - 1.6668057665e-1F;
  p = p * r + 2.0000714765e-1F;
  p = p * r - 2.4999993993e-1F;
  p = p * r + 3.3333331174e-1F;
  const Floats square = r * r;
  return (r + (p * r * square - n * 2.12194440e-4F - 0.5F * square)) + n * 0.693359375F;
}

// Returns log(1 + exp(x)), and x above 20 as LibTorch does. What 1 + exp(x) loses by rounding is
// made up for by the quotient.
RP_INLINE Floats softplus(Floats x) {
  const Floats e = exponential(x), total = 1.0F + e;
  const Floats result = total == 1.0F ? e : logarithm(total) * (e / (total - 1.0F));
  return x > 20.0F ? x : result;
}

template <typename T>
void gate_rows(const DeltaGates& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* input = static_cast<const T*>(a.a) + row * a.heads;
    const T* b = static_cast<const T*>(a.b) + row * a.heads;
    for_each_sixteen(0, a.heads, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats rate = exponential(load(a.a_log + i, n, 0.0F, part));
      const Floats x = load(input + i, n, 0.0F, part) + load(a.dt_bias + i, n, 0.0F, part);
      store(a.decay + row * a.heads + i, -rate * softplus(x), n, part);
      store(static_cast<T*>(a.beta) + row * a.heads + i, sigmoid(load(b + i, n, 0.0F, part)), n, part);
    });
  }
}

template <typename T>
void gate_grad_rows(const DeltaGatesGrad& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * a.heads;
    for_each_sixteen(0, a.heads, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats x = load(static_cast<const T*>(a.a) + at + i, n, 0.0F, part) + load(a.dt_bias + i, n, 0.0F, part);
      const Floats grad = -exponential(load(a.a_log + i, n, 0.0F, part)) * load(a.grad_decay + at + i, n, 0.0F, part);
      const Floats slope = x > 20.0F ? all(1.0F) : sigmoid(x);
      store(static_cast<T*>(a.grad_a) + at + i, grad * slope, n, part);
      store(a.grad_dt_bias + i, load(a.grad_dt_bias + i, n, 0.0F, part) + grad * slope, n, part);
      store(a.grad_a_log + i, load(a.grad_a_log + i, n, 0.0F, part) + grad * softplus(x), n, part);
      const Floats s = sigmoid(load(static_cast<const T*>(a.b) + at + i, n, 0.0F, part));
      const Floats grad_beta = load(static_cast<const T*>(a.grad_beta) + at + i, n, 0.0F, part);
      store(static_cast<T*>(a.grad_b) + at + i, grad_beta * s * (1.0F - s), n, part);
    });
  }
}

template <typename T>
void gated_norm_rows(const GatedNorm& a, std::int64_t begin, std::int64_t end) {
  const T* weight = static_cast<const T*>(a.weight);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* o = static_cast<const T*>(a.o) + row * a.columns;
    const T* z = static_cast<const T*>(a.z) + row * a.columns;
    T* y = static_cast<T*>(a.y) + row * a.columns;
    Floats squares = {};
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats value = load(o + i, n, 0.0F, part);
      squares += value * value;
    });
    const float rstd = 1.0F / __builtin_sqrtf(sum(squares) / static_cast<float>(a.columns) + a.epsilon);
    a.rstd[row] = rstd;
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats normal = rounded_to(load(o + i, n, 0.0F, part) * rstd, o);
      const Floats scaled = rounded_to(load(weight + i, n, 0.0F, part) * normal, o);
      const Floats gate = load(z + i, n, 0.0F, part);
      store(y + i, scaled * (gate * sigmoid(gate)), n, part);
    });
  }
}

template <typename T>
void gated_norm_grad_rows(const GatedNormGrad& a, std::int64_t begin, std::int64_t end) {
  const T* weight = static_cast<const T*>(a.weight);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * a.columns;
    const T *grad_y = static_cast<const T*>(a.grad_y) + at, *o = static_cast<const T*>(a.o) + at,
            *z = static_cast<const T*>(a.z) + at;
    T *grad_o = static_cast<T*>(a.grad_o) + at, *grad_z = static_cast<T*>(a.grad_z) + at;
    const float rstd = a.rstd[row];
    Floats products = {};
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats normal = load(o + i, n, 0.0F, part) * rstd, rounded = rounded_to(normal, o);
      const Floats factor = load(weight + i, n, 0.0F, part), gate = load(z + i, n, 0.0F, part);
      const Floats s = sigmoid(gate), grad = load(grad_y + i, n, 0.0F, part);
      const Floats grad_scaled = grad * (gate * s);
      products += grad_scaled * factor * normal;
      store(a.grad_weight + i, load(a.grad_weight + i, n, 0.0F, part) + grad_scaled * rounded, n, part);
      store(grad_z + i, grad * rounded_to(factor * rounded, o) * (s * (1.0F + gate * (1.0F - s))), n, part);
    });
    const float mean = sum(products) / static_cast<float>(a.columns);
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats normal = load(o + i, n, 0.0F, part) * rstd, gate = load(z + i, n, 0.0F, part);
      const Floats grad_scaled = load(grad_y + i, n, 0.0F, part) * (gate * sigmoid(gate));
      store(grad_o + i, (grad_scaled * load(weight + i, n, 0.0F, part) - normal * mean) * rstd, n, part);
    });
  }
}

}  // namespace
}  // namespace rp::models
