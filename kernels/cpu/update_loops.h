// kernels/cpu/update_loops.h
// The loops of update_kernels.h, written once over a vector type. Each including source defines the
// vector type V and is compiled for one instruction set. So everything here has internal linkage,
// and no inline function of another header is called (the linker might keep the copy with the wrong
// instructions).
//
// V has: Floats, kWidth; all(x); load<dtype>(array, i); store<dtype>(array, i, x);
// stream<dtype>(array, i, x), which needs an aligned address; square_root(x); smaller(x, y) and
// larger(x, y), which return y if one argument is NaN; Squares, the 16 partial sums of squares;
// stream_fence().
#pragma once

#include "common/check.h"
#include "common/order_stores.h"
#include "kernels/cpu/update_kernels.h"

namespace rp {
namespace {

// Elements of one iteration of the update loop: a cache line (64 bytes) of each 16-bit array, two
// lines of each fp32 array.
constexpr std::size_t kUpdateElements = 32;
static_assert(kUpdateElements <= kUndoElements);
// How far ahead the update loop prefetches. The hardware's own prefetcher stops at the end of every
// page, which with five arrays costs 3 to 10 % of the bandwidth (Zen 5, one and two threads). 256
// elements were too few; 768 and 1024 were slower.
constexpr std::size_t kPrefetchElements = 512;

template <typename V, DType kDType>
typename V::Floats gradient_at(const GroupGradients& gradients, std::size_t i) {
  typename V::Floats sum = V::all(0.0F) + V::template load<kDType>(gradients.uses[0], i);
  for (std::size_t use = 1; use < gradients.num_uses; ++use) sum += V::template load<kDType>(gradients.uses[use], i);
  return sum;
}

template <DType kDType>
constexpr std::size_t kBytes = dtype_bytes(kDType);

// An address after the end of an array is harmless, even if it does not exist.
template <DType kDType>
void prefetch_update(const void* array, std::size_t i) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(array) + i * kBytes<kDType>;
  __builtin_prefetch(reinterpret_cast<const void*>(address), 1);
  if constexpr (kDType == DType::kFloat32) __builtin_prefetch(reinterpret_cast<const void*>(address + 64), 1);
}

// The coefficients of UpdateStep in registers.
template <typename V>
struct Coefficients {
  explicit Coefficients(const UpdateStep& step)
      : gradient_scale(V::all(step.gradient_scale)),
        max_value(V::all(step.max_value)),
        min_value(V::all(-step.max_value)),
        coupled_decay(V::all(step.coupled_decay)),
        decay(V::all(step.decay)),
        m_decay(V::all(step.m_decay)),
        m_weight(V::all(step.m_weight)),
        nesterov_weight(V::all(step.nesterov_weight)),
        beta2(V::all(step.beta2)),
        v_weight(V::all(step.v_weight)),
        v_correction(V::all(step.v_correction)),
        epsilon(V::all(step.epsilon)),
        step_size(V::all(step.step_size)),
        clips_values(step.clips_values),
        couples_decay(step.couples_decay),
        m_from_gradient(step.m_from_gradient),
        nesterov(step.nesterov) {}

  typename V::Floats gradient_scale, max_value, min_value, coupled_decay, decay, m_decay, m_weight, nesterov_weight,
      beta2, v_weight, v_correction, epsilon, step_size;
  bool clips_values, couples_decay, m_from_gradient, nesterov;
};

// Returns the new value of the parameters `p` for their gradient, and updates the moments.
template <typename V, UpdateKind kKind>
typename V::Floats updated(const GroupState& s, const Coefficients<V>& c, typename V::Floats p, typename V::Floats g,
                           std::size_t at) {
  constexpr DType kFp32 = DType::kFloat32;
  if (c.clips_values) g = V::larger(c.min_value, V::smaller(c.max_value, g));
  if (c.couples_decay) g = g + c.coupled_decay * p;
  if constexpr (kKind == UpdateKind::kPlain) return p + c.step_size * g;
  const auto old_m = V::template load<kFp32>(s.m, at);
  if constexpr (kKind == UpdateKind::kMomentum) {
    const auto m = old_m * c.m_decay + c.m_weight * g;
    V::template store<kFp32>(s.m, at, m);
    return p + c.step_size * (c.nesterov ? g + c.nesterov_weight * m : m);
  }
  const auto m = (c.m_from_gradient ? g : old_m) + c.m_weight * (g - old_m);
  const auto v = V::template load<kFp32>(s.v, at) * c.beta2 + (c.v_weight * g) * g;
  const auto denominator = V::square_root(v) / c.v_correction + c.epsilon;
  V::template store<kFp32>(s.m, at, m);
  V::template store<kFp32>(s.v, at, v);
  return p * c.decay + (c.step_size * m) / denominator;
}

// How the working copy is written. Streaming avoids reading the lines that are overwritten (2 of 30
// bytes per parameter; measured 3 to 6 % of the time) but needs aligned addresses. Master and
// moments have just been read; streaming them too gained nothing.
enum class Working : std::uint8_t { kNone, kStore, kStream };

// Copies the elements [i, i + num) before they are overwritten.
template <typename V>
void save_elements(const GroupState& s, std::size_t i, std::size_t num) {
  constexpr DType kFp32 = DType::kFloat32;
  UpdateUndo& undo = *s.undo;
  const std::uint64_t half = (undo.place & 1) ^ 1;
  for (std::size_t k = 0; k < num; k += V::kWidth) {
    V::template store<kFp32>(undo.master[half], k, V::template load<kFp32>(s.old_master, i + k));
    if (s.m != nullptr) V::template store<kFp32>(undo.m[half], k, V::template load<kFp32>(s.m, i + k));
    if (s.v != nullptr) V::template store<kFp32>(undo.v[half], k, V::template load<kFp32>(s.v, i + k));
  }
  order_stores();
  __atomic_store_n(&undo.place, UpdateUndo::place_of(i, num, half), __ATOMIC_RELAXED);
  order_stores();
}

// Updates whole groups of vectors, starting at `i`. Returns the first element that is left.
template <typename V, UpdateKind kKind, DType kGradient, DType kDType, Working kWorking, bool kSaves>
std::size_t update_vectors(const GroupState& state, const GroupGradients& gradients, const UpdateStep& step,
                           std::size_t i, std::size_t end) {
  constexpr DType kFp32 = DType::kFloat32;
  constexpr std::size_t kStride = V::kWidth == 1 ? 1 : kUpdateElements;
  const Coefficients<V> c(step);
  const GroupState s = state;
  const GroupGradients grads = gradients;
  for (; i + kStride <= end; i += kStride) {
    if constexpr (kStride > 1) {
      if constexpr (num_moments(kKind) >= 1) prefetch_update<kFp32>(s.m, i + kPrefetchElements);
      if constexpr (num_moments(kKind) == 2) prefetch_update<kFp32>(s.v, i + kPrefetchElements);
      prefetch_update<kFp32>(s.old_master, i + kPrefetchElements);
      prefetch_update<kGradient>(grads.uses[0], i + kPrefetchElements);
    }
    if constexpr (kSaves) save_elements<V>(s, i, kStride);
#pragma GCC unroll 4
    for (std::size_t at = i; at < i + kStride; at += V::kWidth) {
      const auto g = gradient_at<V, kGradient>(grads, at) * c.gradient_scale;
      const auto p = updated<V, kKind>(s, c, V::template load<kFp32>(s.old_master, at), g, at);
      V::template store<kFp32>(s.master, at, p);
      if constexpr (kWorking == Working::kStore) V::template store<kDType>(s.working, at, p);
      if constexpr (kWorking == Working::kStream) V::template stream<kDType>(s.working, at, p);
    }
  }
  if constexpr (kWorking == Working::kStream) V::stream_fence();
  return i;
}

template <typename V, DType kDType>
std::size_t add_vectors(float* sum, const GroupGradients& gradients, std::size_t i, std::size_t end) {
  const GroupGradients grads = gradients;
  for (; i + V::kWidth <= end; i += V::kWidth) {
    const auto total = V::template load<DType::kFloat32>(sum, i) + gradient_at<V, kDType>(grads, i);
    V::template store<DType::kFloat32>(sum, i, total);
  }
  return i;
}

template <typename V, DType kDType>
std::size_t square_vectors(const GroupGradients& gradients, std::size_t i, std::size_t end, double* lanes) {
  const GroupGradients grads = gradients;
  typename V::Squares squares(lanes);
  for (; i + kNumSquareLanes <= end; i += kNumSquareLanes) {
#pragma GCC unroll 16
    for (std::size_t k = 0; k < kNumSquareLanes; k += V::kWidth) squares.add(k, gradient_at<V, kDType>(grads, i + k));
  }
  squares.put(lanes);
  return i;
}

template <typename V, DType kWorking>
std::size_t skip_vectors(const GroupState& state, std::size_t i, std::size_t end) {
  const GroupState s = state;
  for (; i + V::kWidth <= end; i += V::kWidth) {
    V::template store<kWorking>(s.working, i, V::template load<DType::kFloat32>(s.old_master, i));
  }
  return i;
}

// Calls visit(Constant<d>()) for a dtype that is known only at run time: one of the three that
// update.h accepts.
template <DType kValue>
struct Constant {
  static constexpr DType value = kValue;
};
template <typename Visit>
std::size_t with_dtype(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kBFloat16: return visit(Constant<DType::kBFloat16>());
    case DType::kFloat16: return visit(Constant<DType::kFloat16>());
    default: RP_ASSERT(dtype == DType::kFloat32); return visit(Constant<DType::kFloat32>());
  }
}

// The ranges: first whole vectors, then the rest with the portable kernels.

template <typename V, UpdateKind kKind, bool kSaves>
std::size_t update_kind(const GroupState& state, const GroupGradients& gradients, const UpdateStep& step,
                        std::size_t begin, std::size_t end) {
  const std::uintptr_t working_address = reinterpret_cast<std::uintptr_t>(state.working);
  return with_dtype(gradients.dtype, [&](auto gradient) {
    constexpr DType kGradient = decltype(gradient)::value;
    if (state.working == nullptr) {
      return update_vectors<V, kKind, kGradient, DType::kFloat32, Working::kNone, kSaves>(state, gradients, step, begin,
                                                                                          end);
    }
    return with_dtype(state.working_dtype, [&](auto working) {
      constexpr DType kDType = decltype(working)::value;
      const bool stream = V::kWidth > 1 && (working_address + begin * kBytes<kDType>) % 64 == 0;
      return stream ? update_vectors<V, kKind, kGradient, kDType, Working::kStream, kSaves>(state, gradients, step,
                                                                                            begin, end)
                    : update_vectors<V, kKind, kGradient, kDType, Working::kStore, kSaves>(state, gradients, step,
                                                                                           begin, end);
    });
  });
}

template <typename V, bool kSaves>
std::size_t update_whole_vectors(const GroupState& state, const GroupGradients& gradients, const UpdateStep& step,
                                 std::size_t begin, std::size_t end) {
  switch (step.kind) {
    case UpdateKind::kAdam: return update_kind<V, UpdateKind::kAdam, kSaves>(state, gradients, step, begin, end);
    case UpdateKind::kMomentum:
      return update_kind<V, UpdateKind::kMomentum, kSaves>(state, gradients, step, begin, end);
    case UpdateKind::kPlain: return update_kind<V, UpdateKind::kPlain, kSaves>(state, gradients, step, begin, end);
  }
  return begin;
}

template <typename V>
void update_range(const GroupState& state, const GroupGradients& gradients, const UpdateStep& step, std::size_t begin,
                  std::size_t end) {
  const std::size_t done = state.undo == nullptr ? update_whole_vectors<V, false>(state, gradients, step, begin, end)
                                                 : update_whole_vectors<V, true>(state, gradients, step, begin, end);
  if (done < end) kPortableUpdateKernels.update(state, gradients, step, done, end);
}

template <typename V>
void skip_range(const GroupState& state, std::size_t begin, std::size_t end) {
  const std::size_t done = with_dtype(
      state.working_dtype, [&](auto working) { return skip_vectors<V, decltype(working)::value>(state, begin, end); });
  if (done < end) kPortableUpdateKernels.skip(state, done, end);
}

template <typename V>
void add_range(float* sum, const GroupGradients& gradients, std::size_t begin, std::size_t end) {
  const std::size_t done = with_dtype(
      gradients.dtype, [&](auto dtype) { return add_vectors<V, decltype(dtype)::value>(sum, gradients, begin, end); });
  if (done < end) kPortableUpdateKernels.add(sum, gradients, done, end);
}

template <typename V>
void square_range(const GroupGradients& gradients, std::size_t begin, std::size_t end, double* lanes) {
  const std::size_t done = with_dtype(gradients.dtype, [&](auto dtype) {
    return square_vectors<V, decltype(dtype)::value>(gradients, begin, end, lanes);
  });
  if (done < end) kPortableUpdateKernels.squares(gradients, done, end, lanes);
}

}  // namespace
}  // namespace rp
