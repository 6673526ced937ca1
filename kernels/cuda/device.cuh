// kernels/cuda/device.cuh
// The basic functions of the kernels: element formats, loads and stores of 16 bytes, sums over a
// block of threads.
//
// nvcc compiles the sources of kernels as CUDA. The tests also compile them as plain C++ over an
// emulation of blocks and threads (tests/kernels/cuda/emulation.h, included before this file). So
// the kernels use no other parts of CUDA (matrix.cuh adds what matrix products need).
//
// Compiled with -fmad=false. The compiler would otherwise contract different products and sums in
// different instances of a template (whole and partial packs, with and without a fused sum), and
// results would depend on alignment. Memory limits the speed of these kernels, not arithmetic.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#elif !defined(RP_CUDA_EMULATION)
#error "compile this with nvcc, or include tests/kernels/cuda/emulation.h first"
#endif

#include <cmath>
#include <cstdint>

namespace rp::cuda {

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(Bf16 value) { return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16); }
__device__ inline float widen(Fp16 value) { return __half2float(__ushort_as_half(value.bits)); }

// Rounds to nearest, ties to even.
template <typename T>
__device__ inline T narrow(float value);
template <>
__device__ inline float narrow<float>(float value) {
  return value;
}
template <>
__device__ inline Bf16 narrow<Bf16>(float value) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}
template <>
__device__ inline Fp16 narrow<Fp16>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};
}

__device__ inline std::uint32_t bits_of(float value) { return __float_as_uint(value); }
__device__ inline std::uint32_t bits_of(Bf16 value) { return value.bits; }
__device__ inline std::uint32_t bits_of(Fp16 value) { return value.bits; }

// Returns the value as a store as T would round it.
template <typename T>
__device__ inline float rounded(float value) {
  return widen(narrow<T>(value));
}

// The number of elements in 16 bytes.
template <typename T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

// The values that one thread loads at once.
template <typename T>
struct Pack {
  float at[kPack<T>];
};

__device__ inline uint4 words_of(const Pack<float>& values) {
  return {__float_as_uint(values.at[0]), __float_as_uint(values.at[1]), __float_as_uint(values.at[2]),
          __float_as_uint(values.at[3])};
}
template <typename T>
__device__ inline std::uint32_t word_of(float low, float high) {
  return static_cast<std::uint32_t>(narrow<T>(low).bits) | (static_cast<std::uint32_t>(narrow<T>(high).bits) << 16);
}
template <typename T>
__device__ inline uint4 words_of(const Pack<T>& values) {
  return {word_of<T>(values.at[0], values.at[1]), word_of<T>(values.at[2], values.at[3]),
          word_of<T>(values.at[4], values.at[5]), word_of<T>(values.at[6], values.at[7])};
}

__device__ inline void take_word(Pack<float>& values, int i, std::uint32_t word) {
  values.at[i] = __uint_as_float(word);
}
template <typename T>
__device__ inline void take_word(Pack<T>& values, int i, std::uint32_t word) {
  values.at[2 * i] = widen(T{static_cast<std::uint16_t>(word)});
  values.at[2 * i + 1] = widen(T{static_cast<std::uint16_t>(word >> 16)});
}
template <typename T>
__device__ inline Pack<T> pack_of(uint4 words) {
  Pack<T> values;
  take_word(values, 0, words.x);
  take_word(values, 1, words.y);
  take_word(values, 2, words.z);
  take_word(values, 3, words.w);
  return values;
}

// Loads the next values of an array that has `left` (at least 1) more elements; values after its
// end are `other`. kAligned: the address is a multiple of 16 bytes.
template <bool kAligned, typename T>
__device__ inline Pack<T> load(const T* from, std::int64_t left, float other = 0) {
  if (kAligned && left >= kPack<T>) return pack_of<T>(*reinterpret_cast<const uint4*>(from));
  Pack<T> values;
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) values.at[k] = k < left ? widen(from[k]) : other;
  return values;
}

// The same in the format of memory, with 0 after the end. Values that a thread keeps for later need
// half the registers in 16 bits.
template <bool kAligned, typename T>
__device__ inline uint4 load_words(const T* from, std::int64_t left) {
  if (kAligned && left >= kPack<T>) return *reinterpret_cast<const uint4*>(from);
  constexpr int kOfWord = 4 / static_cast<int>(sizeof(T));
  std::uint32_t words[4] = {};
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) {
    if (k < left) words[k / kOfWord] |= bits_of(from[k]) << (16 * (k % kOfWord));
  }
  return {words[0], words[1], words[2], words[3]};
}

// Stores 16 bytes at once. Written in assembly, because the compiler would merge the store with the
// stores of single elements that a last pack may need, and then store every pack element by
// element.
__device__ inline void store_words(void* to, uint4 words) {
#ifdef __CUDACC__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
#else
  *static_cast<uint4*>(to) = words;
#endif
}

template <bool kAligned, typename T>
__device__ inline void store(T* to, std::int64_t left, const Pack<T>& values) {
  if (kAligned && left >= kPack<T>) {
    store_words(to, words_of(values));
    return;
  }
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) {
    if (k < left) to[k] = narrow<T>(values.at[k]);
  }
}

// Loads kPack<T> values of fp32: once or twice 16 bytes.
template <typename T, bool kAligned>
__device__ inline Pack<T> load_floats(const float* from, std::int64_t left, float other = 0) {
  Pack<T> values;
#pragma unroll
  for (int k = 0; k < kPack<T>; k += 4) {
    if (kAligned && left >= k + 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + k);
      values.at[k] = four.x;
      values.at[k + 1] = four.y;
      values.at[k + 2] = four.z;
      values.at[k + 3] = four.w;
      continue;
    }
#pragma unroll
    for (int i = k; i < k + 4; ++i) values.at[i] = i < left ? from[i] : other;
  }
  return values;
}

template <bool kAligned, typename T>
__device__ inline void store_floats(float* to, std::int64_t left, const Pack<T>& values) {
#pragma unroll
  for (int k = 0; k < kPack<T>; k += 4) {
    if (kAligned && left >= k + 4) {
      store_words(to + k, {__float_as_uint(values.at[k]), __float_as_uint(values.at[k + 1]),
                           __float_as_uint(values.at[k + 2]), __float_as_uint(values.at[k + 3])});
      continue;
    }
#pragma unroll
    for (int i = k; i < k + 4; ++i) {
      if (i < left) to[i] = values.at[i];
    }
  }
}

// Returns the sum over the lanes of a warp in each of them. Lanes are added in pairs, so that all
// get the same bits.
template <typename Value>
__device__ inline Value warp_sum(Value value) {
#pragma unroll
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, static_cast<int>(step));
  }
  return value;
}

// Returns the sum over all threads of the block in each of them: pairs of lanes, then warps in
// order. Every thread of the block must call it. REQUIRES: blockDim.x == kThreads.
template <unsigned kThreads, typename Value>
__device__ inline Value block_sum(Value value) {
  __shared__ Value of_warp[kThreads / kWarp];
  value = warp_sum(value);
  __syncthreads();  // the previous call's sums have been read
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  Value total = of_warp[0];
#pragma unroll
  for (unsigned i = 1; i < kThreads / kWarp; ++i) total += of_warp[i];
  return total;
}

__device__ inline float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// Returns the derivative of x sigmoid(x).
__device__ inline float silu_slope(float x) {
  const float s = sigmoid(x);
  return s * (1.0F + x * (1.0F - s));
}

// Returns x / y, rounded up.
__device__ __host__ constexpr std::int64_t divide_up(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

}  // namespace rp::cuda
