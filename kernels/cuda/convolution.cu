#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_sums.cuh"

namespace rp::cuda {

using models::GpuConvolution;
using models::GpuConvolutionGrad;
using models::kTokensOfConvolution;

namespace {

constexpr unsigned kThreads = 256;
constexpr int kBlocks = 4;  // as in rms_norm.cu

// The tokens and the channel of a thread's turn.
struct ConvolutionTurn {
  __device__ ConvolutionTurn(const GpuConvolution& a, std::int64_t turn) {
    const std::int64_t parts = divide_up(a.channels, kThreads), runs = divide_up(a.length, kTokensOfConvolution);
    run = turn / parts;
    channel = turn % parts * kThreads + threadIdx.x;
    row = run / runs * a.length;
    first = run % runs * kTokensOfConvolution;
    end = a.length - first < kTokensOfConvolution ? a.length : first + kTokensOfConvolution;
  }

  std::int64_t run;         // among those of all sequences
  std::int64_t row;         // the sequence's first token
  std::int64_t first, end;  // tokens of the sequence
  std::int64_t channel;     // may be after the last one
};

// The taps of one channel, by their distance from the current token. kTaps is at least their
// number.
template <typename T, int kTaps>
struct ChannelTaps {
  __device__ ChannelTaps(const GpuConvolution& call, const ConvolutionTurn& turn)
      : a(call), y(static_cast<const T*>(call.y) + turn.row * call.channels + turn.channel), row(turn.row) {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      weight[i] = i < a.taps ? a.weight[(a.taps - 1 - i) * a.channels + turn.channel] : 0.0F;
    }
  }

  // Returns y of a token of the sequence, or 0 before its beginning.
  [[nodiscard]] __device__ float y_at(std::int64_t token) const {
    return token >= 0 ? widen(y[token * a.channels]) : 0.0F;
  }
  // Returns the largest distance of a tap that is within the token's document.
  [[nodiscard]] __device__ int reach(std::int64_t token) const {
    const std::int64_t position = a.positions == nullptr ? token : a.positions[row + token];
    return static_cast<int>(position < a.taps ? position : a.taps - 1);
  }
  // Returns the convolution before it is rounded, the oldest token first. `window`: y by distance.
  [[nodiscard]] __device__ float sum(const float (&window)[kTaps], int reach) const {
    float total = 0;
#pragma unroll
    for (int i = kTaps - 1; i >= 0; --i) {
      if (i <= reach) total += weight[i] * window[i];
    }
    return total;
  }

  const GpuConvolution& a;
  const T* y;
  std::int64_t row;
  float weight[kTaps];
};

template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads, kTaps > 4 ? 2 : kBlocks) convolve(GpuConvolution a, std::int64_t turns) {
  for (std::int64_t i = blockIdx.x; i < turns; i += gridDim.x) {
    const ConvolutionTurn turn(a, i);
    if (turn.channel >= a.channels) continue;
    const ChannelTaps<T, kTaps> taps(a, turn);
    T* x = static_cast<T*>(a.x) + turn.row * a.channels + turn.channel;
    float window[kTaps];
#pragma unroll
    for (int j = 1; j < kTaps; ++j) window[j - 1] = taps.y_at(turn.first - j);
#pragma unroll 4
    for (std::int64_t token = turn.first; token < turn.end; ++token) {
#pragma unroll
      for (int j = kTaps - 1; j > 0; --j) window[j] = window[j - 1];
      window[0] = taps.y_at(token);
      const float value = rounded<T>(taps.sum(window, taps.reach(token)));
      x[token * a.channels] = narrow<T>(value * sigmoid(value));
    }
  }
}

// From the last token to the first. The tokens after the thread's own, up to the reach of the taps,
// are only needed for their gradients.
template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads, 2) convolve_grad(GpuConvolutionGrad call, std::int64_t turns) {
  const GpuConvolution& a = call.forward;
  for (std::int64_t i = blockIdx.x; i < turns; i += gridDim.x) {
    const ConvolutionTurn turn(a, i);
    if (turn.channel >= a.channels) continue;
    const ChannelTaps<T, kTaps> taps(a, turn);
    const std::int64_t at = turn.row * a.channels + turn.channel;
    const T* grad_x = static_cast<const T*>(call.grad_x) + at;
    T* grad_y = static_cast<T*>(call.grad_y) + at;
    const std::int64_t last = (turn.end + a.taps - 1 < a.length ? turn.end + a.taps - 1 : a.length) - 1;
    // By distance from the current token: y of those before it, gradients of the sums of those after
    // it and how far these reach.
    float window[kTaps], grads[kTaps] = {}, grad_weight[kTaps] = {};
    int reaches[kTaps];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) reaches[j] = -1;
#pragma unroll
    for (int j = 1; j < kTaps; ++j) window[j] = taps.y_at(last + 1 - j);
#pragma unroll 4
    for (std::int64_t token = last; token >= turn.first; --token) {
#pragma unroll
      for (int j = 1; j < kTaps; ++j) window[j - 1] = window[j];
      window[kTaps - 1] = taps.y_at(token + 1 - kTaps);
#pragma unroll
      for (int j = kTaps - 1; j > 0; --j) grads[j] = grads[j - 1], reaches[j] = reaches[j - 1];
      reaches[0] = taps.reach(token);
      const float value = rounded<T>(taps.sum(window, reaches[0]));
      grads[0] = widen(grad_x[token * a.channels]) * silu_slope(value);
      if (token >= turn.end) continue;
      float grad = 0;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        if (j <= reaches[j]) grad += taps.weight[j] * grads[j];
        if (j <= reaches[0]) grad_weight[j] += grads[0] * window[j];
      }
      grad_y[token * a.channels] = narrow<T>(grad);
    }
    float* sums = call.partial_sums + turn.run * a.taps * a.channels + turn.channel;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      if (call.grad_weight != nullptr && j < a.taps) sums[(a.taps - 1 - j) * a.channels] = grad_weight[j];
    }
  }
}

std::int64_t turns_of(const GpuConvolution& a) {
  return models::num_convolution_sums(a.sequences, a.length) * divide_up(a.channels, kThreads);
}

// Calls run with the smallest of 4 and kMaxGpuTaps taps that suffices.
template <typename Run>
void with_taps(const GpuConvolution& a, const Run& run) {
  a.taps <= 4 ? run(std::integral_constant<int, 4>())
              : run(std::integral_constant<int, static_cast<int>(models::kMaxGpuTaps)>());
}

}  // namespace

void convolution(DType dtype, const GpuConvolution& call, void* stream) {
  const std::int64_t turns = turns_of(call);
  with_element(dtype, [&](auto type) {
    with_taps(call, [&](auto taps) {
      launch("convolution", convolve<decltype(type), decltype(taps)::value>, {.blocks = turns, .threads = kThreads},
             stream, call, turns);
    });
  });
}

void convolution_grad(DType dtype, const GpuConvolutionGrad& call, void* stream) {
  const GpuConvolution& a = call.forward;
  const std::int64_t turns = turns_of(a);
  with_element(dtype, [&](auto type) {
    with_taps(a, [&](auto taps) {
      launch("convolution_grad", convolve_grad<decltype(type), decltype(taps)::value>,
             {.blocks = turns, .threads = kThreads}, stream, call, turns);
    });
  });
  if (call.grad_weight == nullptr) return;
  launch_row_sums(call.partial_sums, call.grad_weight, models::num_convolution_sums(a.sequences, a.length),
                  a.taps * a.channels, stream);
}

}  // namespace rp::cuda
