// kernels/cpu/layer_loops.h
// The loops of layer_kernels.h. Included by one source per instruction set (vector16.h).
#pragma once

#include <cstring>

#include "kernels/cpu/layer_kernels.h"
#include "kernels/cpu/vector16.h"

namespace rp::models {
namespace {

RP_INLINE float square_root(float x) { return __builtin_sqrtf(x); }

// Return the normalised value and the factor of a kind of norm.
template <NormKind kKind, typename T>
RP_INLINE Floats norm_value(Floats normal, const T* x) {
  return kKind == NormKind::kRounded ? rounded_to(normal, x) : normal;
}
template <NormKind kKind>
RP_INLINE Floats norm_factor(Floats weight) {
  return kKind == NormKind::kOffset ? 1.0F + weight : weight;
}

template <typename T, NormKind kKind>
void norm_rows(const RmsNormRows& a, std::int64_t begin, std::int64_t end) {
  const T* weight = static_cast<const T*>(a.weight);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.columns;
    T* y = static_cast<T*>(a.y) + row * a.columns;
    Floats squares = {};
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats value = load(x + i, n, 0.0F, part);
      squares += value * value;
    });
    const float rstd = 1.0F / square_root(sum(squares) / static_cast<float>(a.columns) + a.epsilon);
    a.rstd[row] = rstd;
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats value = norm_value<kKind>(load(x + i, n, 0.0F, part) * rstd, x);
      store(y + i, norm_factor<kKind>(load(weight + i, n, 0.0F, part)) * value, n, part);
    });
  }
}

template <typename T, NormKind kKind>
void norm_grad_rows(const RmsNormGradRows& a, std::int64_t begin, std::int64_t end) {
  const T* weight = static_cast<const T*>(a.weight);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.columns;
    const T* grad_y = static_cast<const T*>(a.grad_y) + row * a.columns;
    T* grad_x = static_cast<T*>(a.grad_x) + row * a.columns;
    const float rstd = a.rstd[row];
    Floats products = {};
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats normal = load(x + i, n, 0.0F, part) * rstd;
      const Floats grad = load(grad_y + i, n, 0.0F, part);
      products += grad * norm_factor<kKind>(load(weight + i, n, 0.0F, part)) * normal;
      if (a.grad_weight == nullptr) return;
      const Floats total = load(a.grad_weight + i, n, 0.0F, part) + grad * norm_value<kKind>(normal, x);
      store(a.grad_weight + i, total, n, part);
    });
    const float mean = sum(products) / static_cast<float>(a.columns);
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      const Floats normal = load(x + i, n, 0.0F, part) * rstd;
      const Floats grad = load(grad_y + i, n, 0.0F, part) * norm_factor<kKind>(load(weight + i, n, 0.0F, part));
      store(grad_x + i, (grad - normal * mean) * rstd, n, part);
    });
  }
}

template <typename T>
void rms_norm_rows(const RmsNormRows& a, std::int64_t begin, std::int64_t end) {
  switch (a.kind) {
    case NormKind::kRounded: return norm_rows<T, NormKind::kRounded>(a, begin, end);
    case NormKind::kUnrounded: return norm_rows<T, NormKind::kUnrounded>(a, begin, end);
    case NormKind::kOffset: return norm_rows<T, NormKind::kOffset>(a, begin, end);
  }
}

template <typename T>
void rms_norm_grad_rows(const RmsNormGradRows& a, std::int64_t begin, std::int64_t end) {
  switch (a.kind) {
    case NormKind::kRounded: return norm_grad_rows<T, NormKind::kRounded>(a, begin, end);
    case NormKind::kUnrounded: return norm_grad_rows<T, NormKind::kUnrounded>(a, begin, end);
    case NormKind::kOffset: return norm_grad_rows<T, NormKind::kOffset>(a, begin, end);
  }
}

template <typename T>
void rotate_rows(const RotateRows& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = a.rotated / 2;
  const float direction = a.back ? -1.0F : 1.0F;
  for (std::int64_t row = begin; row < end; ++row) {
    const float* cosine = a.cosine + row % a.sequence * half;
    const float* sine = a.sine + row % a.sequence * half;
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const std::int64_t offset = (row * a.heads + head) * a.head_size;
      const T* x = static_cast<const T*>(a.x) + offset;
      T* y = static_cast<T*>(a.y) + offset;
      for_each_sixteen(0, half, [&](std::int64_t i, std::int64_t n, auto part) {
        const Floats c = load(cosine + i, n, 0.0F, part);
        const Floats s = load(sine + i, n, 0.0F, part) * direction;
        const Floats first = load(x + i, n, 0.0F, part);
        const Floats second = load(x + half + i, n, 0.0F, part);
        store(y + i, first * c - second * s, n, part);
        store(y + half + i, second * c + first * s, n, part);
      });
      const std::int64_t rest = a.head_size - a.rotated;
      if (rest > 0) std::memmove(y + a.rotated, x + a.rotated, static_cast<std::size_t>(rest) * sizeof(T));
    }
  }
}

// The results of an activation for a gate: act(gate) and its derivative, and the same for `up`. A
// slope is zero where a value is cut off.
struct Gated {
  Floats value, slope;
  Floats up, up_slope;
};

template <Activation kActivation>
RP_INLINE Gated gated(Floats gate, Floats up) {
  if constexpr (kActivation == Activation::kSilu) {
    const Floats s = sigmoid(gate);
    return {.value = gate * s, .slope = s * (1.0F + gate * (1.0F - s)), .up = up, .up_slope = all(1.0F)};
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    // (1 + tanh(u)) / 2 is sigmoid(2 u), u = sqrt(2 / pi) (gate + 0.044715 gate^3).
    constexpr float kFactor = 1.5957691216057308F, kCubic = 0.044715F;
    const Floats square = gate * gate;
    const Floats s = sigmoid(kFactor * (gate + kCubic * square * gate));
    return {.value = gate * s,
            .slope = s + gate * s * (1.0F - s) * (kFactor * (1.0F + 3.0F * kCubic * square)),
            .up = up,
            .up_slope = all(1.0F)};
  } else if constexpr (kActivation == Activation::kSigmoid) {
    const Floats s = sigmoid(gate);
    return {.value = s, .slope = s * (1.0F - s), .up = up, .up_slope = all(1.0F)};
  } else {
    constexpr float kLimit = 7.0F, kFactor = 1.702F;
    const Floats g = gate > kLimit ? all(kLimit) : gate;
    const Floats below = up > kLimit ? all(kLimit) : up, u = below < -kLimit ? all(-kLimit) : below;
    const Floats s = sigmoid(kFactor * g), slope = s + kFactor * g * s * (1.0F - s);
    const Floats cut = up < -kLimit ? Floats{} : all(1.0F);
    return {.value = g * s,
            .slope = gate > kLimit ? Floats{} : slope,
            .up = u + 1.0F,
            .up_slope = up > kLimit ? Floats{} : cut};
  }
}

template <typename T, Activation kActivation>
void gate_elements(const Glu& a, std::int64_t begin, std::int64_t end) {
  const T* gate = static_cast<const T*>(a.gate);
  const T* up = static_cast<const T*>(a.up);
  for_each_sixteen(begin, end, [&](std::int64_t i, std::int64_t n, auto part) {
    const Gated g = gated<kActivation>(load(gate + i, n, 0.0F, part), load(up + i, n, 0.0F, part));
    store(static_cast<T*>(a.y) + i, g.value * g.up, n, part);
  });
}

template <typename T, Activation kActivation>
void gate_grad_elements(const GluGrad& a, std::int64_t begin, std::int64_t end) {
  const T* grad_y = static_cast<const T*>(a.grad_y);
  const T* gate = static_cast<const T*>(a.gate);
  const T* up = static_cast<const T*>(a.up);
  for_each_sixteen(begin, end, [&](std::int64_t i, std::int64_t n, auto part) {
    const Gated g = gated<kActivation>(load(gate + i, n, 0.0F, part), load(up + i, n, 0.0F, part));
    const Floats grad = load(grad_y + i, n, 0.0F, part);
    store(static_cast<T*>(a.grad_up) + i, grad * g.value * g.up_slope, n, part);
    store(static_cast<T*>(a.grad_gate) + i, grad * g.up * g.slope, n, part);
  });
}

template <typename T>
void glu_elements(const Glu& a, std::int64_t begin, std::int64_t end) {
  switch (a.activation) {
    case Activation::kSilu: return gate_elements<T, Activation::kSilu>(a, begin, end);
    case Activation::kGeluTanh: return gate_elements<T, Activation::kGeluTanh>(a, begin, end);
    case Activation::kClampedSwish: return gate_elements<T, Activation::kClampedSwish>(a, begin, end);
    case Activation::kSigmoid: return gate_elements<T, Activation::kSigmoid>(a, begin, end);
  }
}

template <typename T>
void glu_grad_elements(const GluGrad& a, std::int64_t begin, std::int64_t end) {
  switch (a.activation) {
    case Activation::kSilu: return gate_grad_elements<T, Activation::kSilu>(a, begin, end);
    case Activation::kGeluTanh: return gate_grad_elements<T, Activation::kGeluTanh>(a, begin, end);
    case Activation::kClampedSwish: return gate_grad_elements<T, Activation::kClampedSwish>(a, begin, end);
    case Activation::kSigmoid: return gate_grad_elements<T, Activation::kSigmoid>(a, begin, end);
  }
}

template <typename T>
void add_elements(const AddToFloats& a, std::int64_t begin, std::int64_t end) {
  const T* from = static_cast<const T*>(a.from);
  for_each_sixteen(begin, end, [&](std::int64_t i, std::int64_t n, auto part) {
    store(a.total + i, load(a.total + i, n, 0.0F, part) + load(from + i, n, 0.0F, part), n, part);
  });
}

template <typename T>
void cross_entropy_rows(const CrossEntropyRows& a, std::int64_t begin, std::int64_t end) {
  constexpr float kNothing = -__builtin_inff();
  for (std::int64_t row = begin; row < end; ++row) {
    T* logits = static_cast<T*>(a.logits) + row * a.columns;
    const std::int64_t label = a.labels[row];
    Floats largest_lanes = all(kNothing);
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      largest_lanes = larger(load(logits + i, n, kNothing, part), largest_lanes);
    });
    const float shift = largest(largest_lanes);
    // A second sum adds the odd groups, so that two chains of additions run in parallel.
    Floats sums[2] = {};
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      sums[(i / kLanes) % 2] += exponential(load(logits + i, n, kNothing, part) - shift);
    });
    const float total = sum(sums[0] + sums[1]);
    const Floats at_label = load_some(logits + label, 1, 0.0F);
    a.losses[row] = __builtin_logf(total) - (at_label[0] - shift);
    const float log_sum = __builtin_logf(total) + shift;
    if (a.log_sums != nullptr) a.log_sums[row] = log_sum;
    if (!a.with_gradient) continue;
    const float factor = (1 + 2 * a.z_loss * log_sum) * (a.scale / total);
    for_each_sixteen(0, a.columns, [&](std::int64_t i, std::int64_t n, auto part) {
      store(logits + i, exponential(load(logits + i, n, kNothing, part) - shift) * factor, n, part);
    });
    store_some(logits + label, exponential(at_label - shift) * factor - a.scale, 1);
  }
}

}  // namespace
}  // namespace rp::models
