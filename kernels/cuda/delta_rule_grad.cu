// Computes the backward pass of the gated delta rule. What chunks need of themselves is computed
// again (delta_chunks.cu). Then the gradient of the state is carried from the last chunk to the
// first. Then all chunks compute the remaining gradients at once (delta_chunk_grad.cu,
// delta_row_grad.cu).
//
// With dO, the gradient dS' of the state at a chunk's end, and the names of delta_chunk.cuh:
//   dU = P^T dO + diag(w) K dS'        (1 + L)^T dR = dU        dV = diag(beta) dR
//   dS = E_last dS' + Q^T diag(E) dO - K^T diag(beta E) dR
#include "kernels/cuda/delta_chunk_grad.cuh"
#include "kernels/cuda/delta_slice.cuh"
#include "kernels/cuda/kernels.h"

namespace rp::cuda {

using models::GpuDeltaRuleGrad;

namespace {

template <int kKeys>
struct BackwardMemory {
  alignas(16) float grad_state[kKeys * kSlice<kKeys>];  // dS'
  alignas(16) float grad_o[kChunk * kSlice<kKeys>];
  alignas(16) float values[kChunk * kSlice<kKeys>];  // diag(beta) (V - diag(E) K S), then dU, then -diag(beta E) dR
  StepTiles tiles;
  RowFactors factors;
  ChunkGates gates;
};

// The operands of a chunk and slice.
template <typename T, int kKeys>
struct SliceOfChunk {
  __device__ SliceOfChunk(const GpuDeltaRuleGrad& a, const DeltaScratch& scratch, const SlicePlace& slice,
                          const DeltaPlace& value)
      : q(rows_of_head<T>(a.in.q, a.in.q_stride, value, slice.key_head, a.in.key_size)),
        k(rows_of_head<T>(a.in.k, a.in.k_stride, value, slice.key_head, a.in.key_size)),
        v(rows_of_slice<T>(a.in.v, a.in.v_stride, a.in, value, slice)),
        grad_o(rows_of_slice<T>(a.grad_o, a.in.value_heads * a.in.value_size, a.in, value, slice)),
        inverse(scratch.inverse + value.part * kChunk * kChunk),
        scores(scratch.scores + value.part * kChunk * kChunk) {}

  ChunkRows<T> q, k, v, grad_o;
  const float *inverse, *scores;
};

// Writes U, dR, dV and the slice's sums for the gradients of the gates.
template <typename T, int kKeys>
__device__ inline void store_values(const GpuDeltaRuleGrad& a, const DeltaScratch& scratch, const SlicePlace& slice,
                                    const DeltaPlace& value, const ChunkRows<T>& v, const ChunkGates& gates,
                                    SliceSums<kKeys>& recalled, SliceSums<kKeys>& u, SliceSums<kKeys>& grad_u) {
  const GpuDeltaInputs& in = a.in;
  const int stride = static_cast<int>(in.value_size), stride_of_v = static_cast<int>(in.value_heads * in.value_size);
  float *to_u = scratch.u + slice_of_part(in, value, kChunk, slice),
        *to_grad_u = scratch.grad_u + slice_of_part(in, value, kChunk, slice);
  T* grad_v = static_cast<T*>(a.grad_v) + value.token * stride_of_v + slice.head * in.value_size + slice.first;
  for_each_sum(u, [&](int i, int c, float sum) {
    if (c < slice.columns) to_u[i * stride + c] = sum;
  });
  for_each_sum(grad_u, [&](int i, int c, float sum) {
    if (c < slice.columns) to_grad_u[i * stride + c] = sum;
    if (i < value.count && c < slice.columns) grad_v[i * stride_of_v + c] = narrow<T>(gates.beta[i] * sum);
  });
  float* sums = scratch.sums + (value.part * divide_up(in.value_size, kSlice<kKeys>) + slice.slice) * 2 * kChunk;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int i = u.row(r);
    float of_missing = 0, of_recalled = 0;
#pragma unroll
    for (int c = 0; c < SliceSums<kKeys>::kWidth; ++c) {
      const float decayed = gates.from_start[i] * recalled.at[r][c];
      of_missing = fmaf(grad_u.at[r][c], v(i, u.column(c)) - decayed, of_missing);
      of_recalled = fmaf(grad_u.at[r][c], decayed, of_recalled);
    }
    of_missing = sum_of_row(of_missing);
    of_recalled = sum_of_row(of_recalled);
    if (threadIdx.x % 16 > 0) continue;
    sums[i] = of_missing;
    sums[kChunk + i] = of_recalled;
  }
}

// Computes U, dU and dR, and writes them.
template <typename T, int kKeys>
__device__ inline void grad_of_values(const GpuDeltaRuleGrad& a, const DeltaScratch& scratch, const SlicePlace& slice,
                                      const DeltaPlace& value, const SliceOfChunk<T, kKeys>& x,
                                      BackwardMemory<kKeys>& m) {
  constexpr int kColumns = kSlice<kKeys>;
  const GpuDeltaInputs& in = a.in;
  const int size = static_cast<int>(in.key_size), stride = static_cast<int>(in.value_size);
  const float* states = a.states + slice_of_part(in, value, in.key_size, slice);
  const auto unit_k = [&](int i, int c) { return x.k(i, c) * m.factors.k[i]; };
  const auto kept_k = [&](int i, int c) { return x.k(i, c) * (m.factors.k[i] * m.gates.to_end[i]); };
  const auto state = [&](int c, int k) { return c < slice.columns && k < size ? states[k * stride + c] : 0.0F; };
  SliceSums<kKeys> recalled = {}, u = {}, grad_u = {}, grad_r = {};
  if (value.chunk > 0) add_product<true, false>(recalled, m.tiles, size, unit_k, state);
  for_each_sum(recalled, [&](int i, int c, float sum) {
    m.values[i * kColumns + c] = m.gates.beta[i] * (x.v(i, c) - m.gates.from_start[i] * sum);
    m.grad_o[i * kColumns + c] = x.grad_o(i, c);
  });
  const auto inverse = [&](int i, int j) { return x.inverse[i * kChunk + j]; };
  const auto transposed_inverse = [&](int i, int j) { return x.inverse[j * kChunk + i]; };
  const auto transposed_scores = [&](int i, int j) { return x.scores[j * kChunk + i]; };
  add_product_with_shared<true>(u, m.tiles.left, kChunk, inverse, m.values);
  add_product_with_shared<true>(grad_u, m.tiles.left, size, kept_k, m.grad_state);
  add_product_with_shared<false>(grad_u, m.tiles.left, kChunk, transposed_scores, m.grad_o);
  for_each_sum(grad_u, [&](int i, int c, float sum) { m.values[i * kColumns + c] = sum; });
  add_product_with_shared<false>(grad_r, m.tiles.left, kChunk, transposed_inverse, m.values);
  store_values<T, kKeys>(a, scratch, slice, value, x.v, m.gates, recalled, u, grad_r);
  __syncthreads();  // all threads have multiplied dU
  for_each_sum(grad_r, [&](int i, int c, float sum) {
    m.values[i * kColumns + c] = -m.gates.beta[i] * m.gates.from_start[i] * sum;
  });
}

// Writes dS' and the slice's sum for the gradient of E_last.
template <int kColumns>
__device__ inline void store_grad_state(const GpuDeltaRuleGrad& a, const DeltaScratch& scratch, const SlicePlace& slice,
                                        const DeltaPlace& value, const float* grad_state) {
  const int count = static_cast<int>(a.in.key_size) * kColumns, stride = static_cast<int>(a.in.value_size);
  const std::int64_t first = slice_of_part(a.in, value, a.in.key_size, slice);
  float products = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kProductThreads) {
    const int at = i / kColumns * stride + i % kColumns;
    if (i % kColumns >= slice.columns) continue;
    scratch.grad_states[first + at] = grad_state[i];
    products = fmaf(a.states[first + at], grad_state[i], products);
  }
  products = block_sum<kProductThreads>(products);
  if (threadIdx.x == 0) scratch.across[value.part * divide_up(a.in.value_size, kColumns) + slice.slice] = products;
}

// Replaces dS' by dS.
template <typename T, int kKeys>
__device__ inline void grad_of_state(int size, const SliceOfChunk<T, kKeys>& x, BackwardMemory<kKeys>& m) {
  for (int first = 0; first < size; first += kProductRows) {
    SliceSums<kKeys> grad = {};
    const auto decayed_q = [&](int c, int i) { return x.q(i, first + c) * (m.factors.q[i] * m.gates.from_start[i]); };
    const auto unit_k = [&](int c, int i) { return x.k(i, first + c) * m.factors.k[i]; };
    add_product_with_shared<false>(grad, m.tiles.left, kChunk, decayed_q, m.grad_o);
    add_product_with_shared<false>(grad, m.tiles.left, kChunk, unit_k, m.values);
    for_each_sum(grad, [&](int row, int c, float sum) {
      float& state = m.grad_state[(first + row) * kSlice<kKeys> + c];
      state = fmaf(m.gates.across, state, sum);
    });
  }
}

// One block of threads per value head and slice.
template <typename T, int kKeys>
__global__ void __launch_bounds__(kProductThreads, 2)
    carry_gradients(GpuDeltaRuleGrad a, DeltaScratch scratch, std::int64_t turns) {
  __shared__ BackwardMemory<kKeys> m;
  const GpuDeltaInputs& in = a.in;
  for (std::int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const SlicePlace slice = slice_of_turn<kKeys>(in, turn);
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kSlice<kKeys>; i += kProductThreads) m.grad_state[i] = 0;
    for (std::int64_t chunk = num_chunks(in) - 1; chunk >= 0; --chunk) {
      const DeltaPlace value = place_of_value(in, slice.sequence, slice.head, chunk);
      load_gates<T>(m.gates, in, scratch, value);
      load_factors(m.factors, in, scratch, place_of_key(in, slice.sequence, slice.key_head, chunk));
      __syncthreads();
      store_grad_state<kSlice<kKeys>>(a, scratch, slice, value, m.grad_state);
      const SliceOfChunk<T, kKeys> x(a, scratch, slice, value);
      grad_of_values<T, kKeys>(a, scratch, slice, value, x, m);
      if (chunk > 0) grad_of_state<T, kKeys>(static_cast<int>(in.key_size), x, m);
      __syncthreads();  // the gradient of the state is complete, and the gates have been read
    }
  }
}

}  // namespace

void delta_rule_grad(DType dtype, const GpuDeltaRuleGrad& call, void* stream) {
  const GpuDeltaInputs& in = call.in;
  const DeltaScratch scratch(in, call.scratch);
  const std::int64_t turns = in.sequences * in.value_heads * num_delta_slices(in);
  with_key_size("delta_rule_grad", in, [&](auto keys) {
    weigh_delta_chunks(dtype, in, scratch, stream);
    with_element(dtype, [&](auto type) {
      launch("delta_rule_grad", carry_gradients<decltype(type), decltype(keys)::value>,
             {.blocks = turns, .threads = kProductThreads}, stream, call, scratch, turns);
    });
    finish_delta_grads(dtype, call, scratch, num_delta_slices(in), stream);
    finish_delta_rows(dtype, call, scratch, stream);
  });
}

}  // namespace rp::cuda
