// kernels/cpu/delta_matrix.h
// Computes with small fp32 matrices in scratch memory: products, triangular systems,
// transpositions. Included by one source per instruction set (vector16.h).
//
// Each element of a product is one sum in the order of the depth, whatever the size of the tiles
// that stay in registers, so all instruction sets compute the same bits. Rows have room for a whole
// number of groups of sixteen columns, and matrices for a whole number of tiles of rows. Functions
// may write there, and read numbers from there that do not reach any result.
#pragma once

#include "kernels/cpu/vector16.h"

namespace rp::models {
namespace {

// As many fp32 values as a register holds. Sums that stay in registers have this type, because
// compilers keep wider vectors in memory.
#if defined(__AVX512F__)
constexpr int kRegisterLanes = 16;
using Register = float __attribute__((vector_size(64)));
#elif defined(__AVX2__)
constexpr int kRegisterLanes = 8;
using Register = float __attribute__((vector_size(32)));
#else
constexpr int kRegisterLanes = 4;
using Register = float __attribute__((vector_size(16)));
#endif
using RegisterInMemory [[gnu::aligned(4), gnu::may_alias]] = Register;

// The tile of a product that is kept in registers. kMaxTileRows is a multiple of each kTileRows, and
// kLanes of a register.
constexpr int kMaxTileRows = 8;
constexpr int kTileRows = kRegisterLanes == 16 ? 8 : 4, kTileVectors = 2;

RP_INLINE Register load_register(const float* from) { return *reinterpret_cast<const RegisterInMemory*>(from); }
RP_INLINE void store_register(float* to, Register value) { *reinterpret_cast<RegisterInMemory*>(to) = value; }

// Round up to whole groups of lanes, and to whole tiles of rows of every instruction set.
constexpr std::int64_t whole_lanes(std::int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }
constexpr std::int64_t whole_tiles(std::int64_t rows) {
  return (rows + kMaxTileRows - 1) / kMaxTileRows * kMaxTileRows;
}

struct Matrix {
  [[nodiscard]] RP_INLINE float* row(std::int64_t i) const { return data + i * stride; }
  float* data;
  std::int64_t stride;
};

// Gives away parts of a block of memory. Without memory it only counts them.
class Scratch {
 public:
  explicit Scratch(float* memory) : memory_(memory) {}

  // Rows are an odd number of cache lines apart, so that the rows of a column of tiles do not fall
  // into the same few sets of the cache.
  RP_INLINE Matrix matrix(std::int64_t rows, std::int64_t columns) {
    const std::int64_t stride = (whole_lanes(columns) / kLanes | 1) * kLanes;
    return {numbers(whole_lanes(rows) * stride), stride};
  }
  RP_INLINE float* numbers(std::int64_t count) {
    float* const result = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += whole_lanes(count);
    return result;
  }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  float* memory_;
  std::int64_t used_ = 0;
};

// The left operand of a product: a matrix, or a transposed one.
struct Left {
  const float* data;
  std::int64_t row_step, depth_step;
};
RP_INLINE Left plain(const Matrix& matrix) { return {matrix.data, matrix.stride, 1}; }
RP_INLINE Left transposed(const Matrix& matrix) { return {matrix.data, 1, matrix.stride}; }

// Says what is known to be zero, or not needed.
enum class Triangle : std::uint8_t {
  kNone,
  kLowerLeft,    // the left operand is zero above the diagonal
  kUpperLeft,    // the left operand is zero below the diagonal
  kLowerResult,  // the result is needed on the diagonal and below
};

struct Extent {
  std::int64_t rows, columns, depth;
};

template <int kVectors>
RP_INLINE void multiply_tile(const Left& left, const Matrix& right, const Matrix& result, std::int64_t i,
                             std::int64_t j, std::int64_t begin, std::int64_t end, float keep) {
  Register sums[kTileRows][kVectors] = {};
  const float* a = left.data + i * left.row_step;
  for (std::int64_t k = begin; k < end; ++k) {
    Register b[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) b[v] = load_register(right.row(k) + j + v * kRegisterLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const float factor = a[r * left.row_step + k * left.depth_step];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * b[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* to = result.row(i + r) + j + v * kRegisterLanes;
      store_register(to, keep == 0.0F ? sums[r][v] : load_register(to) * keep + sums[r][v]);
    }
  }
}

template <int kVectors>
RP_INLINE void multiply_columns(const Left& left, const Matrix& right, const Matrix& result, const Extent& extent,
                                float keep, Triangle triangle, std::int64_t j) {
  for (std::int64_t i = 0; i < extent.rows; i += kTileRows) {
    if (triangle == Triangle::kLowerResult && j >= i + kTileRows) continue;
    const std::int64_t begin = triangle == Triangle::kUpperLeft ? i : 0;
    const std::int64_t end =
        triangle == Triangle::kLowerLeft && i + kTileRows < extent.depth ? i + kTileRows : extent.depth;
    multiply_tile<kVectors>(left, right, result, i, j, begin, end, keep);
  }
}

// result = keep * result + left * right. If `keep` is 0, the result is not read.
void multiply(const Left& left, const Matrix& right, const Matrix& result, const Extent& extent, float keep = 0,
              Triangle triangle = Triangle::kNone) {
  const std::int64_t columns = whole_lanes(extent.columns);
  std::int64_t j = 0;
  for (; j + kTileVectors * kRegisterLanes <= columns; j += kTileVectors * kRegisterLanes) {
    multiply_columns<kTileVectors>(left, right, result, extent, keep, triangle, j);
  }
  for (; j < columns; j += kRegisterLanes) multiply_columns<1>(left, right, result, extent, keep, triangle, j);
}

// Solves (1 - L) X = B for a strictly lower triangular L [size, size]. X replaces B.
void solve(const Matrix& lower, const Matrix& x, std::int64_t size, std::int64_t columns) {
  for (std::int64_t j = 0; j < columns; j += kRegisterLanes) {
    for (std::int64_t i = 0; i < size; i += kTileRows) {
      Register sums[kTileRows];
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) sums[r] = load_register(x.row(i + r) + j);
      for (std::int64_t k = 0; k < i; ++k) {
        const Register known = load_register(x.row(k) + j);
#pragma GCC unroll 8
        for (int r = 0; r < kTileRows; ++r) sums[r] += lower.row(i + r)[k] * known;
      }
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
        for (int s = 0; s < r; ++s) sums[r] += lower.row(i + r)[i + s] * sums[s];
        store_register(x.row(i + r) + j, sums[r]);
      }
    }
  }
}

// Solves (1 - L)^T X = B. The rows of L behind the last one, up to a whole number of tiles, must be
// zero, and those of B finite. The sums are in descending order.
void solve_transposed(const Matrix& lower, const Matrix& x, std::int64_t size, std::int64_t columns) {
  for (std::int64_t j = 0; j < columns; j += kRegisterLanes) {
    for (std::int64_t i = (size - 1) / kTileRows * kTileRows; i >= 0; i -= kTileRows) {
      Register sums[kTileRows];
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) sums[r] = load_register(x.row(i + r) + j);
      for (std::int64_t k = size - 1; k >= i + kTileRows; --k) {
        const Register known = load_register(x.row(k) + j);
#pragma GCC unroll 8
        for (int r = 0; r < kTileRows; ++r) sums[r] += lower.row(k)[i + r] * known;
      }
#pragma GCC unroll 8
      for (int r = kTileRows - 1; r >= 0; --r) {
#pragma GCC unroll 8
        for (int s = kTileRows - 1; s > r; --s) sums[r] += lower.row(i + s)[i + r] * sums[s];
        store_register(x.row(i + r) + j, sums[r]);
      }
    }
  }
}

// Four fp32 values: every instruction set can permute them.
using Quad = float __attribute__((vector_size(16)));
using QuadInMemory [[gnu::aligned(4), gnu::may_alias]] = Quad;

// Writes the transposed matrix, in squares of four.
void transpose(const Matrix& from, std::int64_t rows, std::int64_t columns, const Matrix& to) {
  for (std::int64_t i = 0; i < rows; i += 4) {
    for (std::int64_t j = 0; j < columns; j += 4) {
      Quad x[4];
      for (int k = 0; k < 4; ++k) x[k] = *reinterpret_cast<const QuadInMemory*>(from.row(i + k) + j);
      const Quad a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5),
                 b = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
      const Quad c = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5),
                 d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
      const Quad y[4] = {__builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
                         __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
      for (int k = 0; k < 4; ++k) *reinterpret_cast<QuadInMemory*>(to.row(j + k) + i) = y[k];
    }
  }
}

// Return the sum of the products of two rows, or of two matrices.
RP_INLINE Floats products(const float* a, const float* b, std::int64_t columns) {
  Floats total = {};
  for (std::int64_t j = 0; j < columns; j += kLanes) total += load(a + j) * load(b + j);
  return total;
}
RP_INLINE float dot(const float* a, const float* b, std::int64_t columns) { return sum(products(a, b, columns)); }
RP_INLINE float dot(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t columns) {
  Floats total = {};
  for (std::int64_t i = 0; i < rows; ++i) total += products(a.row(i), b.row(i), columns);
  return sum(total);
}

// to = factor * from, by rows of `columns` elements.
RP_INLINE void scale_row(const float* from, float factor, float* to, std::int64_t columns) {
  for (std::int64_t j = 0; j < columns; j += kLanes) store(to + j, load(from + j) * factor);
}

}  // namespace
}  // namespace rp::models
