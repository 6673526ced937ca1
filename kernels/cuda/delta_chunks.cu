// Computes the part of the gated delta rule that each chunk of tokens needs of itself alone.
#include "kernels/cuda/delta_chunk.cuh"
#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

namespace {

constexpr float kLengthEpsilon = 1e-6F;  // added to the sum of squares of a query or key
// A decay below this is treated as this: exp() of it is 0, and sums of it stay finite.
constexpr float kLowestDecay = -1000.0F;

// One thread per chunk and value head. Sums are fp64: after strong decays, an fp32 sum would not
// resolve weak ones.
__global__ void __launch_bounds__(kProductThreads) sum_decays(GpuDeltaInputs in, DeltaScratch to, std::int64_t turns) {
  for (std::int64_t turn = std::int64_t{blockIdx.x} * kProductThreads + threadIdx.x; turn < turns;
       turn += std::int64_t{gridDim.x} * kProductThreads) {
    const std::int64_t head = turn % in.value_heads, chunk = turn / in.value_heads;
    const DeltaPlace place = place_of_value(in, chunk / num_chunks(in), head, chunk % num_chunks(in));
    const float* decay = in.decay + place.token * in.value_heads + head;
    double total = 0;
    for (int i = 0; i < kChunk; ++i) {
      if (i < place.count) {
        const float own = decay[i * in.value_heads];
        total += static_cast<double>(own < kLowestDecay ? kLowestDecay : own);
      }
      const auto high = static_cast<float>(total);
      to.high[place.part * kChunk + i] = high;
      to.low[place.part * kChunk + i] = static_cast<float>(total - static_cast<double>(high));
    }
  }
}

// Writes 1 / length of each row, for one array by each warp's turn.
template <typename T>
__device__ inline void measure_rows(const ChunkRows<T>& x, float scale, float* of_chunk, float* to) {
  for (int row = static_cast<int>(threadIdx.x / kWarp); row < kChunk; row += kProductThreads / kWarp) {
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x % kWarp); i < x.columns; i += kWarp) {
      const float value = x(row, i);
      squares = fmaf(value, value, squares);
    }
    const float factor = 1.0F / sqrtf(warp_sum(squares) + kLengthEpsilon);
    if (threadIdx.x % kWarp > 0) continue;
    of_chunk[row] = factor * scale;
    to[row] = factor;
  }
}

// A matrix in shared memory, whose columns are in different banks.
using Square = float[kChunk][kChunk + 1];

constexpr int kBlock = 16;  // rows of the parts of a matrix that are inverted at once

// Computes the inverse of 1 + lower on its diagonal and below, outside the upper triangle of the
// blocks on the diagonal. First the blocks of 16 x 16 on the diagonal, a thread for each column;
// then row by row of blocks those below: minus the inverse of the row's diagonal block, times the
// sum over the blocks before it of `lower` times the inverse.
__device__ inline void invert(const Square& lower, Square& inverse) {
  const int thread = static_cast<int>(threadIdx.x), r = thread / kBlock, c = thread % kBlock;
  if (thread < kChunk) {
    const int first = r * kBlock;
    float x[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      x[i] = i == c ? 1.0F : 0.0F;
#pragma unroll
      for (int k = 0; k < i; ++k) x[i] = fmaf(-lower[first + i][first + k], x[k], x[i]);
      inverse[first + i][thread] = x[i];
    }
  }
  __syncthreads();
  for (int row = kBlock; row < kChunk; row += kBlock) {
    for (int column = 0; column < row; column += kBlock) {
      float sum = 0;
      for (int k = column; k < row; ++k) sum = fmaf(lower[row + r][k], inverse[k][column + c], sum);
      inverse[row + r][column + c] = sum;
    }
    __syncthreads();
    float results[kChunk / kBlock] = {};
#pragma unroll
    for (int block = 0; block < kChunk / kBlock - 1; ++block) {
      if (block * kBlock >= row) break;
      for (int k = 0; k < kBlock; ++k) {
        results[block] = fmaf(-inverse[row + r][row + k], inverse[row + k][block * kBlock + c], results[block]);
      }
    }
    __syncthreads();  // all sums have been read
#pragma unroll
    for (int block = 0; block < kChunk / kBlock - 1; ++block) {
      if (block * kBlock < row) inverse[row + r][block * kBlock + c] = results[block];
    }
    __syncthreads();
  }
}

// One block of threads per chunk and key head; the products are shared by its value heads.
template <typename T>
__global__ void __launch_bounds__(kProductThreads, 2)
    weigh_chunks(GpuDeltaInputs in, DeltaScratch to, std::int64_t turns) {
  __shared__ StepTiles tiles;
  __shared__ Square lower, inverse;
  __shared__ RowFactors factors;
  __shared__ ChunkGates gates;
  const int size = static_cast<int>(in.key_size), thread = static_cast<int>(threadIdx.x);
  const std::int64_t sharing = in.value_heads / in.key_heads;
  for (std::int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const std::int64_t head = turn % in.key_heads, chunk = turn / in.key_heads;
    const DeltaPlace key = place_of_key(in, chunk / num_chunks(in), head, chunk % num_chunks(in));
    const ChunkRows<T> q = rows_of_head<T>(in.q, in.q_stride, key, head, in.key_size);
    const ChunkRows<T> k = rows_of_head<T>(in.k, in.k_stride, key, head, in.key_size);
    measure_rows(q, query_scale(in), factors.q, to.q_factors + key.part * kChunk);
    measure_rows(k, 1.0F, factors.k, to.k_factors + key.part * kChunk);
    __syncthreads();
    const auto unit_q = [&](int i, int c) { return q(i, c) * factors.q[i]; };
    const auto unit_k = [&](int i, int c) { return k(i, c) * factors.k[i]; };
    ProductSums<kChunk> kk = {}, qk = {};
    add_product<true, true>(kk, tiles, size, unit_k, unit_k);
    add_product<true, true>(qk, tiles, size, unit_q, unit_k);
    for_each_sum(kk,
                 [&](int i, int j, float sum) { to.key_products[key.part * kChunk * kChunk + i * kChunk + j] = sum; });
    for (std::int64_t value_head = head * sharing; value_head < (head + 1) * sharing; ++value_head) {
      const DeltaPlace value = place_of_value(in, key.sequence, value_head, key.chunk);
      load_gates<T>(gates, in, to, value);
      __syncthreads();
      const std::int64_t matrix = value.part * kChunk * kChunk;
      for_each_sum(
          kk, [&](int i, int j, float sum) { lower[i][j] = j < i ? gates.beta[i] * (sum * gates.decay(i, j)) : 0.0F; });
      for_each_sum(qk, [&](int i, int j, float sum) {
        to.scores[matrix + i * kChunk + j] = j <= i ? sum * gates.decay(i, j) : 0.0F;
      });
      __syncthreads();
      invert(lower, inverse);
      for (int e = thread; e < kChunk * kChunk; e += kProductThreads) {
        const int i = e / kChunk, j = e % kChunk;
        to.inverse[matrix + e] = j <= i ? inverse[i][j] : 0.0F;
      }
    }
  }
}

}  // namespace

void weigh_delta_chunks(DType dtype, const GpuDeltaInputs& in, const DeltaScratch& scratch, void* stream) {
  const std::int64_t chunks = in.sequences * in.chunks(), sums = chunks * in.value_heads;
  launch("sum_decays", sum_decays, {.blocks = divide_up(sums, kProductThreads), .threads = kProductThreads}, stream, in,
         scratch, sums);
  with_element(dtype, [&](auto type) {
    launch("weigh_chunks", weigh_chunks<decltype(type)>, {.blocks = chunks * in.key_heads, .threads = kProductThreads},
           stream, in, scratch, chunks * in.key_heads);
  });
}

}  // namespace rp::cuda
