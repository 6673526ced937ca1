// Compiled with AVX2 and F16C enabled; runs only on processors that have them.
#include <immintrin.h>

#include "kernels/cpu/update_loops.h"

namespace rp {
namespace {

struct Avx2 {
  using Floats = __m256;
  static constexpr std::size_t kWidth = 8;

  static Floats all(float x) { return _mm256_set1_ps(x); }
  static Floats square_root(Floats x) { return _mm256_sqrt_ps(x); }
  static Floats smaller(Floats x, Floats y) { return _mm256_min_ps(x, y); }
  static Floats larger(Floats x, Floats y) { return _mm256_max_ps(x, y); }
  static void stream_fence() { _mm_sfence(); }

  template <DType kDType>
  static Floats load(const void* array, std::size_t i) {
    if constexpr (kDType == DType::kFloat32) return _mm256_loadu_ps(static_cast<const float*>(array) + i);
    const __m128i bits =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const std::uint16_t*>(array) + i));
    if constexpr (kDType == DType::kFloat16) return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }

  // The same conversions as bf16_from_float() and fp16_from_float().
  template <DType kDType>
  static __m128i to_16_bits(Floats x) {
    if constexpr (kDType == DType::kFloat16) return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i upper = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_set1_epi32(0x7fc0), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
  }

  template <DType kDType>
  static void store(void* array, std::size_t i, Floats x) {
    if constexpr (kDType == DType::kFloat32) {
      _mm256_storeu_ps(static_cast<float*>(array) + i, x);
    } else {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<std::uint16_t*>(array) + i), to_16_bits<kDType>(x));
    }
  }

  template <DType kDType>
  static void stream(void* array, std::size_t i, Floats x) {
    if constexpr (kDType == DType::kFloat32) {
      _mm256_stream_ps(static_cast<float*>(array) + i, x);
    } else {
      _mm_stream_si128(reinterpret_cast<__m128i*>(static_cast<std::uint16_t*>(array) + i), to_16_bits<kDType>(x));
    }
  }

  // The 16 partial sums of squares.
  struct Squares {
    explicit Squares(const double* lanes) {
      for (std::size_t k = 0; k < 4; ++k) sums[k] = _mm256_loadu_pd(lanes + 4 * k);
    }
    void add(std::size_t first_lane, Floats x) {
      const __m256d x_low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
      const __m256d x_high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
      sums[first_lane / 4] += x_low * x_low;
      sums[first_lane / 4 + 1] += x_high * x_high;
    }
    void put(double* lanes) const {
      for (std::size_t k = 0; k < 4; ++k) _mm256_storeu_pd(lanes + 4 * k, sums[k]);
    }
    __m256d sums[4];
  };
};

}  // namespace

const UpdateKernels kAvx2UpdateKernels = {.name = "avx2",
                                          .update = update_range<Avx2>,
                                          .skip = skip_range<Avx2>,
                                          .add = add_range<Avx2>,
                                          .squares = square_range<Avx2>};

}  // namespace rp
