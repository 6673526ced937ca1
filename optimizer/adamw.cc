#include "optimizer/adamw.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "optimizer/kernels.h"

namespace rp {

namespace {

// Part of the definition of sum_of_squares(). For the other passes only a compromise: 1.8 MB of work, large beside the
// hand-out of a chunk and small beside a layer.
constexpr std::size_t kChunkElements = 65'536;

std::size_t num_chunks(std::size_t num_elements) { return (num_elements + kChunkElements - 1) / kChunkElements; }

// Calls pass(begin, end) for every chunk.
template <typename Pass>
void for_each_chunk(std::size_t num_elements, ThreadTeam& team, const Pass& pass) {
  team.run(num_chunks(num_elements), [&](std::size_t chunk) {
    const std::size_t begin = chunk * kChunkElements;
    pass(begin, std::min(begin + kChunkElements, num_elements));
  });
}

#if defined(__x86_64__)
// clang 14's __builtin_cpu_supports() does not know this one.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

const Kernels& kernels() { return *usable_kernels().front(); }

}  // namespace

std::span<const Kernels* const> usable_kernels() {
#if defined(__x86_64__)
  static constexpr std::array<const Kernels*, 3> kAll = {&kAvx512Kernels, &kAvx2Kernels, &kScalarKernels};
  static const std::size_t num_unusable = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 && avx2 ? 0U : avx2 ? 1U : 2U;
  }();
  return std::span(kAll).subspan(num_unusable);
#else
  static constexpr std::array<const Kernels*, 1> kAll = {&kScalarKernels};
  return kAll;
#endif
}

AdamWStep AdamWStep::of(const AdamW& settings, std::int64_t step) {
  RP_ASSERT(step >= 1);
  const double t = static_cast<double>(step);
  const double m_weight = 1.0 - settings.beta1;
  AdamWStep s;
  s.decay = static_cast<float>(1.0 - settings.learning_rate * settings.weight_decay);
  s.m_from_gradient = m_weight >= 0.5;
  s.m_weight = static_cast<float>(s.m_from_gradient ? m_weight - 1.0 : m_weight);
  s.beta2 = static_cast<float>(settings.beta2);
  s.v_weight = static_cast<float>(1.0 - settings.beta2);
  s.v_correction = static_cast<float>(std::sqrt(1.0 - std::pow(settings.beta2, t)));
  s.epsilon = static_cast<float>(settings.epsilon);
  s.step_size = static_cast<float>(-settings.learning_rate / (1.0 - std::pow(settings.beta1, t)));
  return s;
}

void update_block(const BlockState& state, const BlockGradients& gradients, const AdamWStep& step, ThreadTeam& team) {
  RP_ASSERT(gradients.num_elements == state.num_elements && gradients.num_uses >= 1);
  for_each_chunk(state.num_elements, team, [&](std::size_t begin, std::size_t end) {
    kernels().update(state, gradients, step, begin, end);
  });
}

void skip_block(const BlockState& state, ThreadTeam& team) {
  for_each_chunk(state.num_elements, team, [&](std::size_t begin, std::size_t end) {
    if (state.working != nullptr) kernels().skip(state, begin, end);
    if (state.master != state.old_master) {
      std::memcpy(state.master + begin, state.old_master + begin, (end - begin) * sizeof(float));
    }
  });
}

void add_gradients(float* sum, const BlockGradients& gradients, ThreadTeam& team) {
  RP_ASSERT(gradients.num_uses >= 1);
  for_each_chunk(gradients.num_elements, team,
                 [&](std::size_t begin, std::size_t end) { kernels().add(sum, gradients, begin, end); });
}

std::size_t num_partial_sums(std::size_t num_elements) { return num_chunks(num_elements); }

double sum_of_squares(const BlockGradients& gradients, std::span<double> partial_sums, ThreadTeam& team) {
  const std::size_t num_sums = num_chunks(gradients.num_elements);
  RP_ASSERT(gradients.num_uses >= 1 && partial_sums.size() >= num_sums);
  for_each_chunk(gradients.num_elements, team, [&](std::size_t begin, std::size_t end) {
    std::array<double, kNumSquareLanes> lanes{};
    kernels().squares(gradients, begin, end, lanes.data());
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    partial_sums[begin / kChunkElements] = sum;
  });
  double sum = 0;
  for (const double partial : partial_sums.first(num_sums)) sum += partial;
  return sum;
}

}  // namespace rp
