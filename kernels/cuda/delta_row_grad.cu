// Computes the gradients of queries and keys from those of the rows divided by their lengths.
#include "kernels/cuda/delta_chunk_grad.cuh"
#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

using models::GpuDeltaRuleGrad;

namespace {

// Writes the gradients of rows x from those of y = scale factor x, where `factor` is 1 / length, for
// one row by each warp's turn.
template <typename T>
__device__ inline void store_row_grads(const ChunkRows<T>& x, const float* factors, float scale, const float* grad_y,
                                       T* grad_x, std::int64_t stride) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  for (int row = static_cast<int>(threadIdx.x / kWarp); row < x.count; row += kProductThreads / kWarp) {
    const float factor = factors[row] * scale;
    float along = 0;
    for (int c = lane; c < x.columns; c += kWarp) along = fmaf(grad_y[row * x.columns + c], x(row, c) * factor, along);
    along = warp_sum(along) / (scale * scale);
    for (int c = lane; c < x.columns; c += kWarp) {
      const float grad = grad_y[row * x.columns + c] - x(row, c) * factor * along;
      grad_x[row * stride + c] = narrow<T>(grad * factor);
    }
  }
}

// One block of threads per chunk and key head.
template <typename T>
__global__ void __launch_bounds__(kProductThreads)
    finish_rows(GpuDeltaRuleGrad a, DeltaScratch scratch, std::int64_t turns) {
  const GpuDeltaInputs& in = a.in;
  const std::int64_t stride = in.key_heads * in.key_size;
  for (std::int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const std::int64_t head = turn % in.key_heads, chunk = turn / in.key_heads;
    const DeltaPlace key = place_of_key(in, chunk / num_chunks(in), head, chunk % num_chunks(in));
    const std::int64_t at = key.token * stride + head * in.key_size, numbers = key.part * kChunk;
    store_row_grads(rows_of_head<T>(in.q, in.q_stride, key, head, in.key_size), scratch.q_factors + numbers,
                    query_scale(in), scratch.grad_q + numbers * in.key_size, static_cast<T*>(a.grad_q) + at, stride);
    store_row_grads(rows_of_head<T>(in.k, in.k_stride, key, head, in.key_size), scratch.k_factors + numbers, 1.0F,
                    scratch.grad_k + numbers * in.key_size, static_cast<T*>(a.grad_k) + at, stride);
  }
}

}  // namespace

void finish_delta_rows(DType dtype, const GpuDeltaRuleGrad& call, const DeltaScratch& scratch, void* stream) {
  const std::int64_t turns = call.in.sequences * call.in.chunks() * call.in.key_heads;
  with_element(dtype, [&](auto type) {
    launch("finish_delta_rows", finish_rows<decltype(type)>, {.blocks = turns, .threads = kProductThreads}, stream,
           call, scratch, turns);
  });
}

}  // namespace rp::cuda
