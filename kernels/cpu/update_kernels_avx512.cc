// Compiled with AVX-512 F, BW, DQ and VL enabled; runs only on processors that have them.
#include <immintrin.h>

#include "kernels/cpu/update_loops.h"

namespace rp {
namespace {

struct Avx512 {
  using Floats = __m512;
  static constexpr std::size_t kWidth = 16;

  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats square_root(Floats x) { return _mm512_sqrt_ps(x); }
  static Floats smaller(Floats x, Floats y) { return _mm512_min_ps(x, y); }
  static Floats larger(Floats x, Floats y) { return _mm512_max_ps(x, y); }
  static void stream_fence() { _mm_sfence(); }

  template <DType kDType>
  static Floats load(const void* array, std::size_t i) {
    if constexpr (kDType == DType::kFloat32) return _mm512_loadu_ps(static_cast<const float*>(array) + i);
    const __m256i bits =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const std::uint16_t*>(array) + i));
    if constexpr (kDType == DType::kFloat16) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  // The same conversions as bf16_from_float() and fp16_from_float().
  template <DType kDType>
  static __m256i to_16_bits(Floats x) {
    if constexpr (kDType == DType::kFloat16) return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), nan, _mm512_set1_epi32(0x7fc0)));
  }

  template <DType kDType>
  static void store(void* array, std::size_t i, Floats x) {
    if constexpr (kDType == DType::kFloat32) {
      _mm512_storeu_ps(static_cast<float*>(array) + i, x);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<std::uint16_t*>(array) + i), to_16_bits<kDType>(x));
    }
  }

  template <DType kDType>
  static void stream(void* array, std::size_t i, Floats x) {
    if constexpr (kDType == DType::kFloat32) {
      _mm512_stream_ps(static_cast<float*>(array) + i, x);
    } else {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(static_cast<std::uint16_t*>(array) + i), to_16_bits<kDType>(x));
    }
  }

  // The 16 partial sums of squares.
  struct Squares {
    explicit Squares(const double* lanes) : low(_mm512_loadu_pd(lanes)), high(_mm512_loadu_pd(lanes + 8)) {}
    void add(std::size_t, Floats x) {
      const __m512d x_low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
      const __m512d x_high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
      low += x_low * x_low;
      high += x_high * x_high;
    }
    void put(double* lanes) const {
      _mm512_storeu_pd(lanes, low);
      _mm512_storeu_pd(lanes + 8, high);
    }
    __m512d low, high;
  };
};

}  // namespace

const UpdateKernels kAvx512UpdateKernels = {.name = "avx512",
                                            .update = update_range<Avx512>,
                                            .skip = skip_range<Avx512>,
                                            .add = add_range<Avx512>,
                                            .squares = square_range<Avx512>};

}  // namespace rp
