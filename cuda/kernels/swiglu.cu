#include "cuda/kernels/kernels.h"
#include "cuda/kernels/launch.cuh"

namespace rp::cuda {

using models::Element;
using models::SwiGlu;
using models::SwiGluGrad;

namespace {

constexpr unsigned kThreads = 256;

__device__ inline float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) swiglu_elements(SwiGlu a, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kPack<T>;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>; i < count; i += stride) {
    const std::int64_t left = count - i;
    const Pack<T> gate = load<kAligned>(static_cast<const T*>(a.gate) + i, left);
    const Pack<T> up = load<kAligned>(static_cast<const T*>(a.up) + i, left);
    Pack<T> y;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) y.at[k] = gate.at[k] * sigmoid(gate.at[k]) * up.at[k];
    store<kAligned>(static_cast<T*>(a.y) + i, left, y);
  }
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) swiglu_grad_elements(SwiGluGrad a, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kPack<T>;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>; i < count; i += stride) {
    const std::int64_t left = count - i;
    const Pack<T> grad = load<kAligned>(static_cast<const T*>(a.grad_y) + i, left);
    const Pack<T> gate = load<kAligned>(static_cast<const T*>(a.gate) + i, left);
    const Pack<T> up = load<kAligned>(static_cast<const T*>(a.up) + i, left);
    Pack<T> grad_gate, grad_up;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      const float s = sigmoid(gate.at[k]);
      grad_up.at[k] = grad.at[k] * (gate.at[k] * s);
      const float slope = s * (1.0F + gate.at[k] * (1.0F - s));
      grad_gate.at[k] = grad.at[k] * up.at[k] * slope;
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

void swiglu(Element element, const SwiGlu& call, std::int64_t count, void* stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    with_condition(are_aligned({call.gate, call.up, call.y}), [&](auto is_aligned) {
      launch("swiglu", swiglu_elements<T, decltype(is_aligned)::value>, grid_for<T>(count), stream, call, count);
    });
  });
}

void swiglu_grad(Element element, const SwiGluGrad& call, std::int64_t count, void* stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    const bool aligned = are_aligned({call.grad_y, call.gate, call.up, call.grad_gate, call.grad_up});
    with_condition(aligned, [&](auto is_aligned) {
      launch("swiglu_grad", swiglu_grad_elements<T, decltype(is_aligned)::value>, grid_for<T>(count), stream, call, count);
    });
  });
}

}  // namespace rp::cuda
