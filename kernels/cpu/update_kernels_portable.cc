#include <cmath>

#include "kernels/cpu/float16.h"
#include "kernels/cpu/update_loops.h"

namespace rp {
namespace {

// A "vector" of one element: the definition that the other instruction sets are tested against.
struct Scalar {
  using Floats = float;
  static constexpr std::size_t kWidth = 1;

  static float all(float x) { return x; }
  static float square_root(float x) { return std::sqrt(x); }
  static float smaller(float x, float y) { return x < y ? x : y; }
  static float larger(float x, float y) { return x > y ? x : y; }
  static void stream_fence() {}

  template <DType kDType>
  static float load(const void* array, std::size_t i) {
    if constexpr (kDType == DType::kFloat32) return static_cast<const float*>(array)[i];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(array)[i];
    return kDType == DType::kBFloat16 ? float_from_bf16(bits) : float_from_fp16(bits);
  }

  template <DType kDType>
  static void store(void* array, std::size_t i, float x) {
    if constexpr (kDType == DType::kFloat32) {
      static_cast<float*>(array)[i] = x;
    } else {
      static_cast<std::uint16_t*>(array)[i] = kDType == DType::kBFloat16 ? bf16_from_float(x) : fp16_from_float(x);
    }
  }

  template <DType kDType>
  static void stream(void* array, std::size_t i, float x) {
    store<kDType>(array, i, x);
  }

  struct Squares {
    explicit Squares(double* all_lanes) : lanes(all_lanes) {}
    void add(std::size_t lane, float x) const { lanes[lane] += static_cast<double>(x) * static_cast<double>(x); }
    void put(double*) const {}
    double* lanes;
  };
};

void scalar_squares(const GroupGradients& gradients, std::size_t begin, std::size_t end, double* lanes) {
  const auto done = with_dtype(gradients.dtype, [&](auto dtype) {
    constexpr DType kDType = decltype(dtype)::value;
    std::size_t i = square_vectors<Scalar, kDType>(gradients, begin, end, lanes);
    Scalar::Squares rest(lanes);
    for (std::size_t lane = 0; i < end; ++i, ++lane) rest.add(lane, gradient_at<Scalar, kDType>(gradients, i));
    return i;
  });
  static_cast<void>(done);
}

}  // namespace

const UpdateKernels kPortableUpdateKernels = {.name = "portable",
                                              .update = update_range<Scalar>,
                                              .skip = skip_range<Scalar>,
                                              .add = add_range<Scalar>,
                                              .squares = scalar_squares};

}  // namespace rp
