// Computes the gradients of the gated delta rule that need the states at a chunk's start and end,
// but no other chunk. With the names of delta_chunk.cuh and delta_rule_grad.cu:
//   G = dR U^T        A = -diag(beta) (D * strictly lower part of G)        dP = dO U^T
//   dQ = diag(E) dO S^T + (dP * D) K
//   dK = diag(w) U dS'^T - diag(beta E) dR S^T + (dP * D)^T Q + (A + A^T) K
#include "kernels/cuda/delta_chunk_grad.cuh"

#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

using models::GpuDeltaRuleGrad;

namespace {

struct GradMemory {
  StepTiles tiles;
  float pairs[kChunk][kChunk + 1];        // the gradients of D times D, then A + A^T
  float by_scores[kChunk][kChunk + 1];    // dP * D
  float from_start[kChunk], kept[kChunk]; // the gradients of the exponents of E and of w
  RowFactors factors;
  ChunkGates gates;
};

// A chunk of one value head.
template <typename T>
struct HeadOfChunk {
  [[nodiscard]] __device__ ChunkRows<T> q() const {
    return rows_of_head<T>(a.in.q, a.in.q_stride, place, key_head, a.in.key_size);
  }
  [[nodiscard]] __device__ ChunkRows<T> k() const {
    return rows_of_head<T>(a.in.k, a.in.k_stride, place, key_head, a.in.key_size);
  }
  [[nodiscard]] __device__ ChunkRows<T> grad_o() const {
    return rows_of_head<T>(a.grad_o, a.in.value_heads * a.in.value_size, place, place.head, a.in.value_size);
  }
  // Return matrices with value_size columns, and key_size or kChunk rows.
  [[nodiscard]] __device__ ChunkRows<float> state() const { return matrix(a.states, a.in.key_size); }
  [[nodiscard]] __device__ ChunkRows<float> grad_state() const { return matrix(scratch.grad_states, a.in.key_size); }
  [[nodiscard]] __device__ ChunkRows<float> u() const { return matrix(scratch.u, kChunk); }
  [[nodiscard]] __device__ ChunkRows<float> grad_u() const { return matrix(scratch.grad_u, kChunk); }
  [[nodiscard]] __device__ const float* scores() const { return scratch.scores + place.part * kChunk * kChunk; }
  [[nodiscard]] __device__ int key_size() const { return static_cast<int>(a.in.key_size); }
  [[nodiscard]] __device__ int value_size() const { return static_cast<int>(a.in.value_size); }

  [[nodiscard]] __device__ ChunkRows<float> matrix(const float* of_chunks, std::int64_t rows) const {
    return {of_chunks + place.part * rows * a.in.value_size, value_size(), static_cast<int>(rows), value_size()};
  }

  const GpuDeltaRuleGrad& a;
  const DeltaScratch& scratch;
  DeltaPlace place;
  std::int64_t key_head;
};

// Returns the sum of the slices' sums for a token: `which` is 0 or 1 (DeltaScratch).
__device__ inline float sum_of_slices(const DeltaScratch& scratch, std::int64_t part, std::int64_t slices, int which,
                                      int i) {
  float sum = 0;
  for (std::int64_t s = 0; s < slices; ++s) sum += scratch.sums[((part * slices + s) * 2 + which) * kChunk + i];
  return sum;
}

// Returns, for the thread's own token i, the sum of `pairs` over rows from i on and columns before i:
// element (i, j) of D contains the decays of the tokens j + 1 to i. Such a sum loses no digits by
// differences of large numbers. Overwrites `pairs` by the sums of columns.
__device__ inline float sum_of_rectangle(GradMemory& m) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < kChunk) {
    for (int row = kChunk - 2; row > i; --row) m.pairs[row][i] += m.pairs[row + 1][i];
  }
  __syncthreads();
  float sum = 0;
  for (int j = 0; i < kChunk && j < i; ++j) sum += m.pairs[i][j];
  __syncthreads();  // the sums of columns have been read
  return sum;
}

// Computes what the gradients get through D, L and P: fills dP * D and A + A^T, and writes the
// gradients of beta. Returns what the gradient of the thread's own decay gets.
template <typename T>
__device__ inline float grad_of_pairs(const HeadOfChunk<T>& x, const float* key_products, std::int64_t slices,
                                      GradMemory& m) {
  ProductSums<kChunk> by_coupling = {}, by_scores = {};
  add_product<true, true>(by_coupling, m.tiles, x.value_size(), x.grad_u(), x.u());
  add_product<true, true>(by_scores, m.tiles, x.value_size(), x.grad_o(), x.u());
  const float* scores = x.scores();
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int i = by_coupling.row(r);
    float of_beta = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int j = by_coupling.column(c);
      const float decay = m.gates.decay(i, j), coupling = j < i ? by_coupling.at[r][c] : 0.0F;
      const float product = key_products[i * kChunk + j] * decay;
      of_beta = fmaf(coupling, product, of_beta);
      m.by_scores[i][j] = by_scores.at[r][c] * decay;
      m.pairs[i][j] = j < i ? by_scores.at[r][c] * scores[i * kChunk + j] - coupling * (m.gates.beta[i] * product) : 0.0F;
      by_coupling.at[r][c] = -m.gates.beta[i] * (coupling * decay);
    }
    of_beta = sum_of_row(of_beta);
    if (threadIdx.x % 16 == 0 && i < x.place.count) {
      static_cast<T*>(x.a.grad_beta)[(x.place.token + i) * x.a.in.value_heads + x.place.head] =
          narrow<T>(sum_of_slices(x.scratch, x.place.part, slices, 0, i) - of_beta);
    }
  }
  __syncthreads();
  const float of_decay = sum_of_rectangle(m);
  for_each_sum(by_coupling, [&](int i, int j, float sum) {
    if (j <= i) m.pairs[i][j] = m.pairs[j][i] = j < i ? sum : 0.0F;
  });
  return of_decay;
}

// Adds the products of the thread's elements with those of `rows` to a number of each row.
template <typename Rows>
__device__ inline void add_row_products(ProductSums<kChunk>& sums, const Rows& rows, float* to) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) sum = fmaf(sums.at[r][c], rows(sums.row(r), sums.column(c)), sum);
    sum = sum_of_row(sum);
    if (threadIdx.x % 16 == 0) to[sums.row(r)] += sum;
  }
}

// Writes the elements to the rows of a key head, or adds them if it is not the first value head.
__device__ inline void add_to_rows(ProductSums<kChunk>& sums, float* rows, int first, int columns, bool is_first) {
  for_each_sum(sums, [&](int i, int c, float sum) {
    if (first + c >= columns) return;
    float& to = rows[i * columns + first + c];
    to = is_first ? sum : to + sum;
  });
}

// Computes what a value head adds to the gradient of the divided rows of Q, and the gradients of the
// exponents of E, for the columns from `first` on.
template <typename T>
__device__ inline void grad_of_queries(const HeadOfChunk<T>& x, int first, bool is_first_head, float* grad_q,
                                       GradMemory& m) {
  const ChunkRows<T> q = x.q(), k = x.k(), grad_o = x.grad_o();
  const ChunkRows<float> states = x.state();
  const auto unit_q = [&](int i, int c) { return q(i, first + c) * m.factors.q[i]; };
  const auto column_of_k = [&](int c, int i) { return k(i, first + c) * m.factors.k[i]; };
  const auto state = [&](int c, int e) { return states(first + c, e); };
  const auto decayed_grad_o = [&](int i, int e) { return grad_o(i, e) * m.gates.from_start[i]; };
  const auto by_scores = [&](int i, int j) { return m.by_scores[i][j]; };
  ProductSums<kChunk> sums = {};
  if (x.place.chunk > 0) add_product<true, true>(sums, m.tiles, x.value_size(), decayed_grad_o, state);
  add_row_products(sums, unit_q, m.from_start);
  add_product<true, false>(sums, m.tiles, kChunk, by_scores, column_of_k);
  add_to_rows(sums, grad_q, first, x.key_size(), is_first_head);
}

// The same for K and w.
template <typename T>
__device__ inline void grad_of_keys(const HeadOfChunk<T>& x, int first, bool is_first_head, float* grad_k,
                                    GradMemory& m) {
  const ChunkRows<T> q = x.q(), k = x.k();
  const ChunkRows<float> states = x.state(), grad_states = x.grad_state(), u = x.u(), grad_u = x.grad_u();
  const auto unit_k = [&](int i, int c) { return k(i, first + c) * m.factors.k[i]; };
  const auto column_of_q = [&](int c, int i) { return q(i, first + c) * m.factors.q[i]; };
  const auto column_of_k = [&](int c, int i) { return unit_k(i, c); };
  const auto state = [&](int c, int e) { return states(first + c, e); };
  const auto grad_state = [&](int c, int e) { return grad_states(first + c, e); };
  const auto kept_u = [&](int i, int e) { return u(i, e) * m.gates.to_end[i]; };
  const auto forgotten = [&](int i, int e) { return grad_u(i, e) * (-m.gates.beta[i] * m.gates.from_start[i]); };
  const auto by_scores = [&](int j, int i) { return m.by_scores[i][j]; };
  const auto pairs = [&](int i, int j) { return m.pairs[i][j]; };
  ProductSums<kChunk> sums = {};
  add_product<true, true>(sums, m.tiles, x.value_size(), kept_u, grad_state);
  add_row_products(sums, unit_k, m.kept);
  if (x.place.chunk > 0) add_product<true, true>(sums, m.tiles, x.value_size(), forgotten, state);
  add_product<true, false>(sums, m.tiles, kChunk, by_scores, column_of_q);
  add_product<true, false>(sums, m.tiles, kChunk, pairs, column_of_k);
  add_to_rows(sums, grad_k, first, x.key_size(), is_first_head);
}

// Writes the gradients of decays. A decay is part of E of its token and those after it, and of w of
// those before it.
template <typename T>
__device__ inline void store_grad_decays(const HeadOfChunk<T>& x, std::int64_t slices, float of_pairs, GradMemory& m) {
  const int i = static_cast<int>(threadIdx.x), count = x.place.count;
  const float *state = x.state().first, *grad_state = x.grad_state().first;
  float products = 0;
  for (int e = i; e < x.key_size() * x.value_size(); e += kProductThreads) {
    products = fmaf(state[e], grad_state[e], products);
  }
  const float across = m.gates.across * block_sum<kProductThreads>(products);
  if (i < kChunk) m.from_start[i] -= m.gates.beta[i] * sum_of_slices(x.scratch, x.place.part, slices, 1, i);
  __syncthreads();
  if (i >= count) return;
  float after = across, before = 0;
  for (int j = count - 1; j >= i; --j) after += m.from_start[j];
  for (int j = 0; j < i; ++j) before += m.kept[j];
  x.a.grad_decay[(x.place.token + i) * x.a.in.value_heads + x.place.head] = of_pairs + after + before;
}

// Writes the gradients of rows x from those of y = scale factor x, where `factor` is 1 / length, for
// one row by each warp's turn.
template <typename T>
__device__ inline void store_row_grads(const ChunkRows<T>& x, const float* factors, float scale, const float* grad_y,
                                       T* grad_x, std::int64_t stride) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  for (int row = static_cast<int>(threadIdx.x / kWarp); row < x.count; row += kProductThreads / kWarp) {
    const float factor = factors[row];  // with `scale`
    float along = 0;
    for (int c = lane; c < x.columns; c += kWarp) along = fmaf(grad_y[row * x.columns + c], x(row, c) * factor, along);
    along = warp_sum(along) / (scale * scale);
    for (int c = lane; c < x.columns; c += kWarp) {
      const float grad = grad_y[row * x.columns + c] - x(row, c) * factor * along;
      grad_x[row * stride + c] = narrow<T>(grad * factor);
    }
  }
}

// One block of threads per chunk and key head, whose value heads follow each other.
template <typename T>
__global__ void __launch_bounds__(kProductThreads, 2)
    finish_gradients(GpuDeltaRuleGrad a, DeltaScratch scratch, std::int64_t slices, std::int64_t turns) {
  __shared__ GradMemory m;
  const GpuDeltaInputs& in = a.in;
  const std::int64_t sharing = in.value_heads / in.key_heads;
  for (std::int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const std::int64_t head = turn % in.key_heads, chunk = turn / in.key_heads;
    const DeltaPlace key = place_of_key(in, chunk / num_chunks(in), head, chunk % num_chunks(in));
    const float* key_products = scratch.key_products + key.part * kChunk * kChunk;
    float *grad_q = scratch.grad_q + key.part * kChunk * in.key_size,
          *grad_k = scratch.grad_k + key.part * kChunk * in.key_size;
    load_factors(m.factors, in, scratch, key);
    for (std::int64_t i = 0; i < sharing; ++i) {
      const HeadOfChunk<T> x = {a, scratch, place_of_value(in, key.sequence, head * sharing + i, key.chunk), head};
      load_gates<T>(m.gates, in, scratch, x.place);
      if (threadIdx.x < kChunk) m.from_start[threadIdx.x] = m.kept[threadIdx.x] = 0;
      __syncthreads();
      const float of_pairs = grad_of_pairs(x, key_products, slices, m);
      __syncthreads();  // A + A^T is complete
      for (int first = 0; first < x.key_size(); first += kChunk) {
        grad_of_queries(x, first, i == 0, grad_q, m);
        grad_of_keys(x, first, i == 0, grad_k, m);
      }
      store_grad_decays(x, slices, of_pairs, m);
      __syncthreads();  // the gates and the sums have been read, and the gradients of rows are complete
    }
    const std::int64_t stride = in.key_heads * in.key_size, at = key.token * stride + head * in.key_size;
    const ChunkRows<T> q = rows_of_head<T>(in.q, in.q_stride, key, head, in.key_size);
    const ChunkRows<T> k = rows_of_head<T>(in.k, in.k_stride, key, head, in.key_size);
    store_row_grads(q, m.factors.q, query_scale(in), grad_q, static_cast<T*>(a.grad_q) + at, stride);
    store_row_grads(k, m.factors.k, 1.0F, grad_k, static_cast<T*>(a.grad_k) + at, stride);
    __syncthreads();  // the factors have been read
  }
}

}  // namespace

void finish_delta_grads(DType dtype, const GpuDeltaRuleGrad& call, const DeltaScratch& scratch, std::int64_t slices,
                        void* stream) {
  const std::int64_t turns = call.in.sequences * call.in.chunks() * call.in.key_heads;
  with_element(dtype, [&](auto type) {
    launch("finish_delta_grads", finish_gradients<decltype(type)>, {.blocks = turns, .threads = kProductThreads},
           stream, call, scratch, slices, turns);
  });
}

}  // namespace rp::cuda
