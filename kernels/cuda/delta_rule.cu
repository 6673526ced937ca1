// Computes the forward pass of the gated delta rule: what chunks need of themselves for all of them
// at once (delta_chunks.cu), then from chunk to chunk what depends on the state.
#include "kernels/cuda/delta_slice.cuh"
#include "kernels/cuda/kernels.h"

namespace rp::cuda {

using models::GpuDeltaRule;

namespace {

template <int kKeys>
struct ForwardMemory {
  alignas(16) float state[kKeys * kSlice<kKeys>];
  alignas(16) float values[kChunk * kSlice<kKeys>];  // diag(beta) (V - diag(E) K S), then U
  StepTile tile;
  RowFactors factors;
  ChunkGates gates;
};

// Writes the state at a chunk's beginning.
template <int kColumns>
__device__ inline void store_state(const GpuDeltaRule& a, const SlicePlace& slice, const DeltaPlace& value,
                                   const float* state) {
  const int count = static_cast<int>(a.in.key_size) * kColumns, stride = static_cast<int>(a.in.value_size);
  float* to = a.states + slice_of_part(a.in, value, a.in.key_size, slice);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kProductThreads) {
    if (i % kColumns < slice.columns) to[i / kColumns * stride + i % kColumns] = state[i];
  }
}

template <typename T, int kKeys>
__device__ inline void run_chunk(const GpuDeltaRule& a, const DeltaScratch& scratch, const SlicePlace& slice,
                                 const DeltaPlace& value, ForwardMemory<kKeys>& m) {
  const GpuDeltaInputs& in = a.in;
  const int size = static_cast<int>(in.key_size);
  const ChunkRows<T> q = rows_of_head<T>(in.q, in.q_stride, value, slice.key_head, in.key_size);
  const ChunkRows<T> k = rows_of_head<T>(in.k, in.k_stride, value, slice.key_head, in.key_size);
  const ChunkRows<T> v = rows_of_slice<T>(in.v, in.v_stride, in, value, slice);
  const float *inverse = scratch.inverse + value.part * kChunk * kChunk,
              *scores = scratch.scores + value.part * kChunk * kChunk;
  const auto times = [](const float* matrix) { return [matrix](int i, int j) { return matrix[i * kChunk + j]; }; };

  SliceSums<kKeys> recalled = {}, o = {}, u = {};
  const auto unit_k = [&](int i, int c) { return k(i, c) * m.factors.k[i]; };
  const auto decayed_q = [&](int i, int c) { return q(i, c) * (m.factors.q[i] * m.gates.from_start[i]); };
  add_product_with_shared<true>(recalled, m.tile, size, unit_k, m.state);
  add_product_with_shared<true>(o, m.tile, size, decayed_q, m.state);
  for_each_sum(recalled, [&](int i, int c, float sum) {
    m.values[i * kSlice<kKeys> + c] = m.gates.beta[i] * (v(i, c) - m.gates.from_start[i] * sum);
  });
  add_product_with_shared<true>(u, m.tile, kChunk, times(inverse), m.values);
  __syncthreads();  // all threads have multiplied the values
  for_each_sum(u, [&](int i, int c, float sum) { m.values[i * kSlice<kKeys> + c] = sum; });
  add_product_with_shared<true>(o, m.tile, kChunk, times(scores), m.values);
  const int stride = static_cast<int>(in.value_heads * in.value_size);
  T* to = static_cast<T*>(a.o) + value.token * stride + slice.head * in.value_size + slice.first;
  for_each_sum(o, [&](int i, int c, float sum) {
    if (i < value.count && c < slice.columns) to[i * stride + c] = narrow<T>(sum);
  });
  if (value.chunk + 1 == num_chunks(in)) return;  // no chunk needs the state
  for (int first = 0; first < size; first += kProductRows) {
    SliceSums<kKeys> learned = {};
    const auto kept_k = [&](int c, int i) { return k(i, first + c) * (m.factors.k[i] * m.gates.to_end[i]); };
    add_product_with_shared<false>(learned, m.tile, kChunk, kept_k, m.values);
    for_each_sum(learned, [&](int row, int c, float sum) {
      float& state = m.state[(first + row) * kSlice<kKeys> + c];
      state = fmaf(m.gates.across, state, sum);
    });
  }
}

// One block of threads per value head and slice.
template <typename T, int kKeys>
__global__ void __launch_bounds__(kProductThreads, 2)
    carry_states(GpuDeltaRule a, DeltaScratch scratch, std::int64_t turns) {
  __shared__ ForwardMemory<kKeys> m;
  const GpuDeltaInputs& in = a.in;
  for (std::int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const SlicePlace slice = slice_of_turn<kKeys>(in, turn);
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kSlice<kKeys>; i += kProductThreads) m.state[i] = 0;
    for (std::int64_t chunk = 0; chunk < num_chunks(in); ++chunk) {
      const DeltaPlace value = place_of_value(in, slice.sequence, slice.head, chunk);
      load_gates<T>(m.gates, in, scratch, value);
      load_factors(m.factors, in, scratch, place_of_key(in, slice.sequence, slice.key_head, chunk));
      __syncthreads();
      if (a.states != nullptr) store_state<kSlice<kKeys>>(a, slice, value, m.state);
      run_chunk<T, kKeys>(a, scratch, slice, value, m);
      __syncthreads();  // the state is complete, and the gates have been read
    }
  }
}

}  // namespace

void delta_rule(DType dtype, const GpuDeltaRule& call, void* stream) {
  const GpuDeltaInputs& in = call.in;
  const DeltaScratch scratch(in, call.scratch);
  const std::int64_t turns = in.sequences * in.value_heads * num_delta_slices(in);
  with_key_size("delta_rule", in, [&](auto keys) {
    weigh_delta_chunks(dtype, in, scratch, stream);
    with_element(dtype, [&](auto type) {
      launch("delta_rule", carry_states<decltype(type), decltype(keys)::value>,
             {.blocks = turns, .threads = kProductThreads}, stream, call, scratch, turns);
    });
  });
}

}  // namespace rp::cuda
