#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

using models::Glu;
using models::GluGrad;

namespace {

constexpr unsigned kThreads = 256;

// The same as in kernels/cpu/layer_loops.h. The activation is the same for all threads.
struct Gated {
  float value, slope, up, up_slope;
};

__device__ inline Gated gated(Activation activation, float gate, float up) {
  if (activation == Activation::kSilu) {
    const float s = sigmoid(gate);
    return {gate * s, s * (1.0F + gate * (1.0F - s)), up, 1.0F};
  }
  if (activation == Activation::kGeluTanh) {
    constexpr float kFactor = 1.5957691216057308F, kCubic = 0.044715F;
    const float square = gate * gate, s = sigmoid(kFactor * (gate + kCubic * square * gate));
    return {gate * s, s + gate * s * (1.0F - s) * (kFactor * (1.0F + 3.0F * kCubic * square)), up, 1.0F};
  }
  if (activation == Activation::kSigmoid) {
    const float s = sigmoid(gate);
    return {s, s * (1.0F - s), up, 1.0F};
  }
  constexpr float kLimit = 7.0F, kFactor = 1.702F;
  const float g = gate > kLimit ? kLimit : gate,
              u = up > kLimit    ? kLimit
                  : up < -kLimit ? -kLimit
                                 : up,
              s = sigmoid(kFactor * g);
  return {g * s, gate > kLimit ? 0.0F : s + kFactor * g * s * (1.0F - s), u + 1.0F,
          up > kLimit || up < -kLimit ? 0.0F : 1.0F};
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) glu_elements(Glu a, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kPack<T>;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>; i < count; i += stride) {
    const std::int64_t left = count - i;
    const Pack<T> gate = load<kAligned>(static_cast<const T*>(a.gate) + i, left);
    const Pack<T> up = load<kAligned>(static_cast<const T*>(a.up) + i, left);
    Pack<T> y;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      const Gated g = gated(a.activation, gate.at[k], up.at[k]);
      y.at[k] = g.value * g.up;
    }
    store<kAligned>(static_cast<T*>(a.y) + i, left, y);
  }
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) glu_grad_elements(GluGrad a, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kPack<T>;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>; i < count; i += stride) {
    const std::int64_t left = count - i;
    const Pack<T> grad = load<kAligned>(static_cast<const T*>(a.grad_y) + i, left);
    const Pack<T> gate = load<kAligned>(static_cast<const T*>(a.gate) + i, left);
    const Pack<T> up = load<kAligned>(static_cast<const T*>(a.up) + i, left);
    Pack<T> grad_gate, grad_up;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      const Gated g = gated(a.activation, gate.at[k], up.at[k]);
      grad_up.at[k] = grad.at[k] * g.value * g.up_slope;
      grad_gate.at[k] = grad.at[k] * g.up * g.slope;
    }
    store<kAligned>(static_cast<T*>(a.grad_up) + i, left, grad_up);
    store<kAligned>(static_cast<T*>(a.grad_gate) + i, left, grad_gate);
  }
}

template <typename T>
Grid grid_for(std::int64_t count) {
  return {.blocks = divide_up(count, std::int64_t{kThreads} * kPack<T>), .threads = kThreads};
}

}  // namespace

void glu(DType dtype, const Glu& call, std::int64_t count, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    with_condition(are_aligned({call.gate, call.up, call.y}), [&](auto is_aligned) {
      launch("glu", glu_elements<T, decltype(is_aligned)::value>, grid_for<T>(count), stream, call, count);
    });
  });
}

void glu_grad(DType dtype, const GluGrad& call, std::int64_t count, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned = are_aligned({call.grad_y, call.gate, call.up, call.grad_gate, call.grad_up});
    with_condition(aligned, [&](auto is_aligned) {
      launch("glu_grad", glu_grad_elements<T, decltype(is_aligned)::value>, grid_for<T>(count), stream, call, count);
    });
  });
}

}  // namespace rp::cuda
