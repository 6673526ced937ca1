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
  float pairs[kChunk][kChunk + 1];         // the gradients of D times D, then A + A^T
  float by_scores[kChunk][kChunk + 1];     // dP * D
  float of_pairs[kChunk];                  // what the gradients of decays get through D
  float from_start[kChunk], kept[kChunk];  // the gradients of the exponents of E and of w
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
  [[nodiscard]] __device__ const float* key_products() const {
    return scratch.key_products + key_part * kChunk * kChunk;
  }
  // Returns the rows of the key head in an array of the scratch memory.
  [[nodiscard]] __device__ float* key_rows(float* of_chunks) const {
    return of_chunks + key_part * kChunk * a.in.key_size;
  }
  [[nodiscard]] __device__ int key_size() const { return static_cast<int>(a.in.key_size); }
  [[nodiscard]] __device__ int value_size() const { return static_cast<int>(a.in.value_size); }

  [[nodiscard]] __device__ ChunkRows<float> matrix(const float* of_chunks, std::int64_t rows) const {
    return {of_chunks + place.part * rows * a.in.value_size, value_size(), static_cast<int>(rows), value_size()};
  }

  const GpuDeltaRuleGrad& a;
  const DeltaScratch& scratch;
  DeltaPlace place;
  std::int64_t key_head, key_part;
};

// Returns the sum of the slices' sums for a token: `which` is 0 or 1 (DeltaScratch).
__device__ inline float sum_of_slices(const DeltaScratch& scratch, std::int64_t part, std::int64_t slices, int which,
                                      int i) {
  float sum = 0;
  for (std::int64_t s = 0; s < slices; ++s) sum += scratch.sums[((part * slices + s) * 2 + which) * kChunk + i];
  return sum;
}

// Computes for each token i the sum of `pairs` over rows from i on and columns before i: element
// (i, j) of D contains the decays of the tokens j + 1 to i. Such a sum loses no digits by differences
// of large numbers. Overwrites `pairs` by the sums of columns.
__device__ inline void sum_rectangles(GradMemory& m) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < kChunk) {
    for (int row = kChunk - 2; row > i; --row) m.pairs[row][i] += m.pairs[row + 1][i];
  }
  __syncthreads();
  if (i < kChunk) {
    float sum = 0;
    for (int j = 0; j < i; ++j) sum += m.pairs[i][j];
    m.of_pairs[i] = sum;
  }
  __syncthreads();  // the sums of columns have been read
}

// Computes what the gradients get through D, L and P: fills dP * D, A + A^T and the
// decays' share, and writes the gradients of beta.
template <typename T>
__device__ inline void grad_of_pairs(const HeadOfChunk<T>& x, std::int64_t slices, GradMemory& m) {
  ProductSums<kChunk> by_coupling = {}, by_scores = {};
  for_each_sum(by_scores, [&](int i, int j, float) { m.by_scores[i][j] = m.gates.decay(i, j); });
  add_product<true, true>(by_coupling, m.tiles, x.value_size(), x.grad_u(), x.u());
  add_product<true, true>(by_scores, m.tiles, x.value_size(), x.grad_o(), x.u());
  const float *scores = x.scores(), *key_products = x.key_products();
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int i = by_coupling.row(r);
    float of_beta = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int j = by_coupling.column(c);
      const float decay = m.by_scores[i][j], coupling = j < i ? by_coupling.at[r][c] : 0.0F;
      const float product = key_products[i * kChunk + j] * decay;
      of_beta = fmaf(coupling, product, of_beta);
      m.by_scores[i][j] = by_scores.at[r][c] * decay;
      m.pairs[i][j] =
          j < i ? by_scores.at[r][c] * scores[i * kChunk + j] - coupling * (m.gates.beta[i] * product) : 0.0F;
      by_coupling.at[r][c] = -m.gates.beta[i] * (coupling * decay);
    }
    of_beta = sum_of_row(of_beta);
    if (threadIdx.x % 16 == 0 && i < x.place.count) {
      static_cast<T*>(x.a.grad_beta)[(x.place.token + i) * x.a.in.value_heads + x.place.head] =
          narrow<T>(sum_of_slices(x.scratch, x.place.part, slices, 0, i) - of_beta);
    }
  }
  __syncthreads();
  sum_rectangles(m);
  for_each_sum(by_coupling, [&](int i, int j, float sum) {
    if (j <= i) m.pairs[i][j] = m.pairs[j][i] = j < i ? sum : 0.0F;
  });
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
__device__ inline void grad_of_queries(const HeadOfChunk<T>& x, int first, bool is_first_head, GradMemory& m) {
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
  add_to_rows(sums, x.key_rows(x.scratch.grad_q), first, x.key_size(), is_first_head);
}

// The same for K and w.
template <typename T>
__device__ inline void grad_of_keys(const HeadOfChunk<T>& x, int first, bool is_first_head, GradMemory& m) {
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
  add_to_rows(sums, x.key_rows(x.scratch.grad_k), first, x.key_size(), is_first_head);
}

// Writes the gradients of decays. A decay is part of E of its token and those after it, and of w of
// those before it.
template <typename T>
__device__ inline void store_grad_decays(const HeadOfChunk<T>& x, std::int64_t slices, GradMemory& m) {
  const int i = static_cast<int>(threadIdx.x), count = x.place.count;
  if (i < kChunk) m.from_start[i] -= m.gates.beta[i] * sum_of_slices(x.scratch, x.place.part, slices, 1, i);
  __syncthreads();
  if (i >= count) return;
  float after = 0, before = 0;
  for (std::int64_t s = 0; s < slices; ++s) after += x.scratch.across[x.place.part * slices + s];
  after *= m.gates.across;
  for (int j = count - 1; j >= i; --j) after += m.from_start[j];
  for (int j = 0; j < i; ++j) before += m.kept[j];
  x.a.grad_decay[(x.place.token + i) * x.a.in.value_heads + x.place.head] = m.of_pairs[i] + after + before;
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
    load_factors(m.factors, in, scratch, key);
    for (std::int64_t i = 0; i < sharing; ++i) {
      const std::int64_t value_head = head * sharing + i;
      const HeadOfChunk<T> x = {
          a, scratch, place_of_value(in, chunk / num_chunks(in), value_head, chunk % num_chunks(in)), head, key.part};
      load_gates<T>(m.gates, in, scratch, x.place);
      if (threadIdx.x < kChunk) m.from_start[threadIdx.x] = m.kept[threadIdx.x] = 0;
      __syncthreads();
      grad_of_pairs(x, slices, m);
      __syncthreads();  // A + A^T is complete
      for (int first = 0; first < x.key_size(); first += kChunk) {
        grad_of_queries(x, first, i == 0, m);
        grad_of_keys(x, first, i == 0, m);
      }
      store_grad_decays(x, slices, m);
      __syncthreads();  // the gates and the sums have been read, and the gradients of rows are complete
    }
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
