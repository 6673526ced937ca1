// Computes products of the rows of each expert with its weight, and their gradients, in tiles of
// 128 x 128. The assignment of rows to experts is read from GPU memory; the host knows only the
// maximum number of tiles.
#include <type_traits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matrix.cuh"

namespace rp::cuda {

using models::ExpertRows;
using models::GroupedProduct;

namespace {

// The plan

constexpr unsigned kPlanThreads = 256;

// Runs as one block. Writes the first row of each expert, and for each tile of rows its expert and
// its index among the expert's tiles.
__global__ void __launch_bounds__(kPlanThreads) plan_expert_rows(ExpertRows a, std::int64_t num_tiles) {
  __shared__ std::int64_t rows_to[kPlanThreads], tiles_to[kPlanThreads];  // sums over the experts up to this thread's
  std::int64_t first_row = 0, first_tile = 0;                             // of the current group of experts
  std::int64_t* tiles = a.plan + a.experts + 1;
  if (threadIdx.x == 0) a.plan[0] = 0;
  for (std::int64_t first = 0; first < a.experts; first += kPlanThreads) {
    const std::int64_t expert = first + threadIdx.x;
    const std::int64_t given = expert < a.experts ? a.counts[expert] : 0;
    // Each count is limited to a.rows, and so is their sum: a wrong count must not lead out of any
    // array.
    std::int64_t rows = given < 0 ? 0 : given < a.rows ? given : a.rows;
    rows_to[threadIdx.x] = rows;
    __syncthreads();
    for (unsigned step = 1; step < kPlanThreads; step *= 2) {
      const std::int64_t before = threadIdx.x >= step ? rows_to[threadIdx.x - step] : 0;
      __syncthreads();
      rows_to[threadIdx.x] += before;
      __syncthreads();
    }
    const auto bounded = [&](std::int64_t row) { return row < a.rows ? row : a.rows; };
    const std::int64_t begin = bounded(first_row + (threadIdx.x > 0 ? rows_to[threadIdx.x - 1] : 0));
    const std::int64_t end = bounded(first_row + rows_to[threadIdx.x]);
    rows = end - begin;
    const std::int64_t tiles_here = divide_up(rows, models::kRowsOfTile);
    tiles_to[threadIdx.x] = tiles_here;
    __syncthreads();
    for (unsigned step = 1; step < kPlanThreads; step *= 2) {
      const std::int64_t before = threadIdx.x >= step ? tiles_to[threadIdx.x - step] : 0;
      __syncthreads();
      tiles_to[threadIdx.x] += before;
      __syncthreads();
    }
    if (expert < a.experts) a.plan[expert + 1] = end;
    const std::int64_t tile = first_tile + tiles_to[threadIdx.x] - tiles_here;
    for (std::int64_t i = 0; i < tiles_here; ++i) tiles[tile + i] = expert << 32 | i;
    first_row = bounded(first_row + rows_to[kPlanThreads - 1]);
    first_tile += tiles_to[kPlanThreads - 1];
    __syncthreads();  // all threads have read the sums of these experts
  }
  for (std::int64_t i = first_tile + threadIdx.x; i < num_tiles; i += kPlanThreads) tiles[i] = -1;
}

// The product

constexpr int kTile = models::kRowsOfTile;  // rows and columns of the result that a block computes at a time
constexpr unsigned kThreads = 256;          // 2 x 4 warps, each with 64 x 32 elements of the result
constexpr int kWarpRows = 64, kWarpColumns = 32;
constexpr int kStages = 3;
constexpr int kStepBytes = 64;  // of each row of a tile, multiplied in one step
constexpr int kChunks = kTile * kStepBytes / 16;
template <typename T>
constexpr int kDepth = kStepBytes / static_cast<int>(sizeof(T));

// result[m, n] = sum over k of a(m, k) b(n, k). The rows of an operand in memory run along k or
// across it.
template <typename T>
struct Tile {
  const T* a;
  const T* b;
  std::int64_t a_stride, b_stride;
  std::int64_t first_result;  // index of the tile's first element in the array of results
  std::int64_t result_stride;
  int rows, columns, depth;  // what is left, counted from the tile's first element
};

// Returns the place of chunk `chunk` of row `row` in an operand's tile. Neighbouring rows are
// shifted against each other, so that in 8 rows the chunks with the same number are in different
// banks.
template <typename T, bool kAlongDepth>
__device__ inline int place_of(int row, int chunk) {
  if constexpr (kAlongDepth) return row * (kStepBytes / 16) + (chunk ^ (row >> 1 & 3));
  return row * (kTile / kPack<T>)+(chunk ^ (row & 7));
}

// Begins the copy of an operand's next step. `rows` and `columns` are what is left in memory, at
// most a tile's.
template <typename T, bool kAligned, bool kAlongDepth>
__device__ inline void begin_copy_of_tile(uint4* tile, const T* from, std::int64_t stride, int rows, int columns) {
  constexpr int kChunksOfRow = kAlongDepth ? kStepBytes / 16 : kTile / kPack<T>;
#pragma unroll
  for (int i = 0; i < kChunks / static_cast<int>(kThreads); ++i) {
    const int index = i * static_cast<int>(kThreads) + static_cast<int>(threadIdx.x);
    const int row = index / kChunksOfRow, chunk = index % kChunksOfRow, left = columns - chunk * kPack<T>;
    const bool is_there = row < rows && left > 0;
    const T* source = is_there ? from + row * stride + chunk * kPack<T> : from;
    uint4* to = tile + place_of<T, kAlongDepth>(row, chunk);
    if constexpr (kAligned) {
      begin_copy(to, source, is_there);
    } else {
      *to = is_there ? load_words<false>(source, left) : uint4{};
    }
  }
}

struct Stage {
  uint4 a[kChunks], b[kChunks];
};

template <typename T, bool kAligned, bool kAlongA, bool kAlongB>
__device__ inline void begin_copy_of_step(Stage& stage, const Tile<T>& tile, int step) {
  const int first = step * kDepth<T>, depth = tile.depth - first;
  const auto copy = [&](auto along, uint4* to, const T* from, std::int64_t stride, int lines) {
    constexpr bool kAlong = decltype(along)::value;
    if constexpr (kAlong) {
      begin_copy_of_tile<T, kAligned, true>(to, from + first, stride, lines, depth);
    } else {
      begin_copy_of_tile<T, kAligned, false>(to, from + first * stride, stride, depth, lines);
    }
  };
  copy(Constant<kAlongA>(), stage.a, tile.a, tile.a_stride, tile.rows);
  copy(Constant<kAlongB>(), stage.b, tile.b, tile.b_stride, tile.columns);
}

// The sums of one warp: 4 x 4 products of 16 x 8 elements, distributed over the lanes as in
// multiply_add().
struct Sums {
  float at[kWarpRows / 16][kWarpColumns / 8][4];
};

// The first row and column of a warp's part of the tile.
struct Part {
  int row, column;
};

template <typename T, bool kAlongA, bool kAlongB>
__device__ inline void add_step(Sums& sums, const Stage& stage, Part part) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  // The two orders in which lanes point to the rows of 16 x 16 elements: down first, or right first.
  const int down = lane % 16, right = lane / 16, down_last = lane % 8 + lane / 16 * 8, right_first = lane / 8 % 2;
#pragma unroll
  for (int k = 0; k < kDepth<T>; k += 16) {
    std::uint32_t a[kWarpRows / 16][4], b[kWarpColumns / 16][4];
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
      const int m = part.row + i * 16;
      const int place =
          kAlongA ? place_of<T, true>(m + down, k / 8 + right) : place_of<T, false>(k + down_last, m / 8 + right_first);
      load_matrices<!kAlongA>(a[i], stage.a + place);
    }
#pragma unroll
    for (int j = 0; j < kWarpColumns / 16; ++j) {
      const int n = part.column + j * 16;
      const int place =
          kAlongB ? place_of<T, true>(n + down_last, k / 8 + right_first) : place_of<T, false>(k + down, n / 8 + right);
      load_matrices<!kAlongB>(b[j], stage.b + place);
    }
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kWarpColumns / 8; ++j) multiply_add<T>(sums.at[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
  }
}

template <bool kAlongDepth>
__device__ inline float element_of(const uint4* tile, int line, int k) {
  const int place = kAlongDepth ? place_of<float, true>(line, k / 4) : place_of<float, false>(k, line / 4);
  return reinterpret_cast<const float*>(tile + place)[kAlongDepth ? k % 4 : line % 4];
}

// For fp32: no tensor-core product has its precision.
template <bool kAlongA, bool kAlongB>
__device__ inline void add_step_of_floats(Sums& sums, const Stage& stage, Part part) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll 2
  for (int k = 0; k < kDepth<float>; ++k) {
    float a[kWarpRows / 8], b[kWarpColumns / 4];
#pragma unroll
    for (int i = 0; i < kWarpRows / 8; ++i) a[i] = element_of<kAlongA>(stage.a, part.row + i * 8 + lane / 4, k);
#pragma unroll
    for (int j = 0; j < kWarpColumns / 4; ++j) {
      b[j] = element_of<kAlongB>(stage.b, part.column + j / 2 * 8 + lane % 4 * 2 + j % 2, k);
    }
#pragma unroll
    for (int i = 0; i < kWarpRows / 8; ++i) {
#pragma unroll
      for (int j = 0; j < kWarpColumns / 4; ++j) {
        float& sum = sums.at[i / 2][j / 2][i % 2 * 2 + j % 2];
        sum = fmaf(a[i], b[j], sum);
      }
    }
  }
}

// Writes two neighbouring results; the second one may be after the end of the row.
template <typename T, bool kAligned>
__device__ inline void put(const GroupedProduct& call, std::int64_t at, int columns, float first, float second) {
  if (call.add_to != nullptr) {
    float* to = call.add_to + at;
    if constexpr (kAligned) {
      const float2 before = *reinterpret_cast<const float2*>(to);
      *reinterpret_cast<float2*>(to) = {before.x + first, before.y + second};
    } else {
      to[0] += first;
      if (columns > 1) to[1] += second;
    }
    return;
  }
  T* to = static_cast<T*>(call.result) + at;
  if constexpr (kAligned && std::is_same_v<T, float>) {
    *reinterpret_cast<float2*>(to) = {first, second};
  } else if constexpr (kAligned) {
    *reinterpret_cast<std::uint32_t*>(to) = word_of<T>(first, second);
  } else {
    to[0] = narrow<T>(first);
    if (columns > 1) to[1] = narrow<T>(second);
  }
}

template <typename T, bool kAligned>
__device__ inline void put_sums(const GroupedProduct& call, const Tile<T>& tile, const Sums& sums, Part part) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int i = 0; i < kWarpRows / 8; ++i) {
    const int row = part.row + i * 8 + lane / 4;
    if (row >= tile.rows) continue;
    const std::int64_t first = tile.first_result + row * tile.result_stride;
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j) {
      const int column = part.column + j * 8 + lane % 4 * 2;
      if (column >= tile.columns) continue;
      const float* pair = sums.at[i / 2][j] + i % 2 * 2;
      put<T, kAligned>(call, first + column, tile.columns - column, pair[0], pair[1]);
    }
  }
}

__device__ inline int left_of_tile(std::int64_t all, std::int64_t first) {
  return static_cast<int>(all - first < kTile ? all - first : kTile);
}

// Returns the tile for a block's turn; it has no rows if the plan has no such tile.
template <typename T, bool kAlongA, bool kAlongB>
__device__ inline Tile<T> tile_of(const GroupedProduct& call, std::int64_t turn) {
  Tile<T> tile = {};
  const std::int64_t columns = kAlongB ? call.outputs : call.inputs;  // of the result
  const std::int64_t column_tiles = divide_up(columns, kTile), n = turn % column_tiles * kTile;
  const T* weight = static_cast<const T*>(call.weight);
  if constexpr (kAlongA) {  // the result's rows are rows of the batch
    const std::int64_t entry = call.plan[call.experts + 1 + turn / column_tiles];
    if (entry < 0) return tile;
    const std::int64_t expert = entry >> 32, row = call.plan[expert] + (entry & 0xffffffff) * kTile;
    const std::int64_t depth = kAlongB ? call.inputs : call.outputs;
    tile.a = static_cast<const T*>(call.rows_in) + row * depth;
    tile.a_stride = depth;
    tile.b = weight + expert * call.inputs * call.outputs + (kAlongB ? n * call.inputs : n);
    tile.first_result = row * columns + n;
    tile.rows = left_of_tile(call.plan[expert + 1], row);
    tile.depth = static_cast<int>(depth);
  } else {  // the result's rows are rows of a weight
    const std::int64_t row_tiles = divide_up(call.outputs, kTile), of_weight = turn / column_tiles;
    const std::int64_t expert = of_weight / row_tiles, m = of_weight % row_tiles * kTile, first = call.plan[expert];
    tile.a = static_cast<const T*>(call.rows_in) + first * call.outputs + m;
    tile.a_stride = call.outputs;
    tile.b = static_cast<const T*>(call.other_rows_in) + first * call.inputs + n;
    tile.first_result = (expert * call.outputs + m) * call.inputs + n;
    tile.rows = left_of_tile(call.outputs, m);
    tile.depth = static_cast<int>(call.plan[expert + 1] - first);
    if (tile.depth == 0 && call.add_to != nullptr) tile.rows = 0;  // nothing to add
  }
  tile.b_stride = call.inputs;
  tile.result_stride = columns;
  tile.columns = left_of_tile(columns, n);
  return tile;
}

// kAlongA, kAlongB: whether the depth of the product runs along the rows of the operand in memory.
// Both: rows times weight^T. Only kAlongA: rows times weight. Neither: rows^T times rows, the
// weight's gradient.
template <typename T, bool kAligned, bool kAlongA, bool kAlongB>
__global__ void __launch_bounds__(kThreads, 2) multiply_groups(GroupedProduct call, std::int64_t turns) {
  __shared__ Stage stages[kStages];  // 48 KiB, the maximum without opt-in; two blocks per multiprocessor
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const Part part = {warp / 4 * kWarpRows, warp % 4 * kWarpColumns};
  for (std::int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const Tile<T> tile = tile_of<T, kAlongA, kAlongB>(call, turn);
    if (tile.rows == 0) continue;
    const bool has_results = part.row < tile.rows && part.column < tile.columns;  // the same for all lanes
    const int steps = (tile.depth + kDepth<T> - 1) / kDepth<T>;
    const auto begin_copy_of = [&](int step) {
      if (step < steps) begin_copy_of_step<T, kAligned, kAlongA, kAlongB>(stages[step % kStages], tile, step);
      end_copy_group();
    };
    Sums sums = {};
    for (int step = 0; step < kStages - 1; ++step) begin_copy_of(step);
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<kStages - 2>();
      // Afterwards this step's data are visible to all threads, and all have multiplied the
      // previous step, whose place is filled next.
      __syncthreads();
      begin_copy_of(step + kStages - 1);
      if (!has_results) continue;
      if constexpr (std::is_same_v<T, float>) {
        add_step_of_floats<kAlongA, kAlongB>(sums, stages[step % kStages], part);
      } else {
        add_step<T, kAlongA, kAlongB>(sums, stages[step % kStages], part);
      }
    }
    if (has_results) put_sums<T, kAligned>(call, tile, sums, part);
    __syncthreads();  // all threads have multiplied the last step
  }
}

template <bool kAlongA, bool kAlongB>
void launch_groups(DType dtype, const GroupedProduct& call, std::int64_t turns, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned = rows_are_aligned<T>(call.inputs) && rows_are_aligned<T>(call.outputs) &&
                         are_aligned({call.rows_in, call.other_rows_in, call.weight, call.result, call.add_to});
    with_condition(aligned, [&](auto is_aligned) {
      launch("grouped_product", multiply_groups<T, decltype(is_aligned)::value, kAlongA, kAlongB>,
             {.blocks = turns, .threads = kThreads}, stream, call, turns);
    });
  });
}

}  // namespace

void plan_experts(const ExpertRows& call, void* stream) {
  launch("plan_experts", plan_expert_rows, {.blocks = 1, .threads = kPlanThreads}, stream, call,
         models::num_row_tiles(call.rows, call.experts));
}

void grouped_linear(DType dtype, const GroupedProduct& call, void* stream) {
  const std::int64_t turns = models::num_row_tiles(call.rows, call.experts) * divide_up(call.outputs, kTile);
  launch_groups<true, true>(dtype, call, turns, stream);
}

void grouped_linear_grad(DType dtype, const GroupedProduct& call, void* stream) {
  const std::int64_t turns = models::num_row_tiles(call.rows, call.experts) * divide_up(call.inputs, kTile);
  launch_groups<true, false>(dtype, call, turns, stream);
}

void grouped_weight_grad(DType dtype, const GroupedProduct& call, void* stream) {
  const std::int64_t turns = call.experts * divide_up(call.outputs, kTile) * divide_up(call.inputs, kTile);
  launch_groups<false, false>(dtype, call, turns, stream);
}

}  // namespace rp::cuda
