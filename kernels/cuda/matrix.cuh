// kernels/cuda/matrix.cuh
// Building blocks of matrix products on compute capability 8.0 and later: asynchronous copies into
// shared memory, fragments of matrices spread over the lanes of a warp, and their product. The
// emulation follows the PTX ISA for each (cp.async, ldmatrix, mma.m16n8k16).
#pragma once

#include <type_traits>

#include "kernels/cuda/device.cuh"

namespace rp::cuda {

// Begins the copy of 16 bytes into shared memory. Both addresses are multiples of 16. If not
// `is_there`, nothing is read and zeros are written.
__device__ inline void begin_copy(uint4* to_shared, const void* from, bool is_there) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to_shared))), "l"(__cvta_generic_to_global(from)),
                 "r"(is_there ? 16 : 0)
               : "memory");
#else
  emulation::begin_copy(to_shared, is_there ? from : nullptr);
#endif
}

// Ends a group of the calling thread's copies. The group may be empty.
__device__ inline void end_copy_group() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulation::end_copy_group();
#endif
}

// Waits until at most the last `kGroups` of the calling thread's groups are incomplete.
template <int kGroups>
__device__ inline void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#else
  emulation::wait_for_copies(kGroups);
#endif
}

// Loads four matrices of 8 x 8 16-bit elements. The rows of matrix i, of 16 bytes each, are at the
// addresses that lanes 8 i to 8 i + 7 pass. Of each matrix a lane gets the elements 2 (lane % 4)
// and the next of row lane / 4, or, if kTransposed, of column lane / 4.
template <bool kTransposed>
__device__ inline void load_matrices(std::uint32_t (&to)[4], const uint4* row_in_shared) {
#ifdef __CUDACC__
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row_in_shared));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
#else
  emulation::load_matrices(to, row_in_shared, kTransposed);
#endif
}

// c += a b in fp32, where c is 16 x 8, a is 16 x 16 and b is 16 x 8. Lane 4 g + t has these
// elements:
// - c[0], c[1]: row g, columns 2 t, 2 t + 1; c[2], c[3]: the same columns of row g + 8;
// - a: rows g and g + 8 of columns 2 t, 2 t + 1, then of columns 2 t + 8, 2 t + 9;
// - b: column g of rows 2 t, 2 t + 1, then of rows 2 t + 8, 2 t + 9.
template <typename T>
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t* b) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  emulation::multiply_add(c, a, b, [](std::uint16_t bits) { return widen(T{bits}); });
#endif
}

}  // namespace rp::cuda
