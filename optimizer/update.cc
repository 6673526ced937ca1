#include "optimizer/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "common/check.h"
#include "kernels/cpu/update_kernels.h"

namespace rp {

namespace {

// Calls pass(begin, end) for every chunk.
template <typename Pass>
void for_each_chunk(std::size_t num_elements, ThreadTeam& team, const Pass& pass) {
  team.run(num_chunks(num_elements), [&](std::size_t chunk) {
    const std::size_t begin = chunk * kChunkElements;
    pass(begin, std::min(begin + kChunkElements, num_elements));
  });
}

template <typename AdamRule>
UpdateStep adam_step(const AdamRule& rule, double t) {
  const double m_weight = 1.0 - rule.beta1;
  UpdateStep s;
  s.kind = UpdateKind::kAdam;
  s.m_from_gradient = m_weight >= 0.5;
  s.m_weight = static_cast<float>(s.m_from_gradient ? m_weight - 1.0 : m_weight);
  s.beta2 = static_cast<float>(rule.beta2);
  s.v_weight = static_cast<float>(1.0 - rule.beta2);
  s.v_correction = static_cast<float>(std::sqrt(1.0 - std::pow(rule.beta2, t)));
  s.epsilon = static_cast<float>(rule.epsilon);
  s.step_size = static_cast<float>(-rule.learning_rate / (1.0 - std::pow(rule.beta1, t)));
  return s;
}

UpdateStep step_of(const AdamW& rule, double t) {
  UpdateStep s = adam_step(rule, t);
  s.decay = static_cast<float>(1.0 - rule.learning_rate * rule.weight_decay);
  return s;
}

void couple_decay(UpdateStep& step, double weight_decay) {
  step.couples_decay = weight_decay != 0;
  step.coupled_decay = static_cast<float>(weight_decay);
}

UpdateStep step_of(const Adam& rule, double t) {
  UpdateStep s = adam_step(rule, t);
  couple_decay(s, rule.weight_decay);
  return s;
}

UpdateStep step_of(const Sgd& rule, double t) {
  const bool is_first = t == 1;
  UpdateStep s;
  s.kind = rule.momentum != 0 ? UpdateKind::kMomentum : UpdateKind::kPlain;
  couple_decay(s, rule.weight_decay);
  s.m_decay = is_first ? 0 : static_cast<float>(rule.momentum);
  s.m_weight = is_first ? 1 : static_cast<float>(1.0 - rule.dampening);
  s.nesterov = rule.nesterov;
  s.nesterov_weight = static_cast<float>(rule.momentum);
  s.step_size = static_cast<float>(-rule.learning_rate);
  return s;
}

void update_range(const GroupState& state, const GroupGradients& gradients, std::span<const UpdateSpan> spans,
                  std::size_t begin, std::size_t end) {
  for (const UpdateSpan& span : spans) {
    if (span.begin < end && span.end > begin) {
      update_kernels().update(state, gradients, span.step, std::max(begin, span.begin), std::min(end, span.end));
    }
  }
}

}  // namespace

UpdateStep update_step_of(const UpdateRule& rule, std::int64_t step) {
  RP_ASSERT(step >= 1);
  return std::visit([step](const auto& some_rule) { return step_of(some_rule, static_cast<double>(step)); }, rule);
}

UpdateStep correction_step(double rate) {
  UpdateStep s;
  s.kind = UpdateKind::kPlain;
  s.step_size = static_cast<float>(-rate);
  return s;
}

std::vector<float> load_signs(const GroupGradients& loads) {
  std::vector<float> signs(loads.num_elements);
  update_kernels().add(signs.data(), loads, 0, loads.num_elements);
  // Compared with the sum, because the mean would be rounded.
  const double sum = std::accumulate(signs.begin(), signs.end(), 0.0);
  const auto num = static_cast<double>(loads.num_elements);
  for (float& each : signs) {
    const double product = num * each;
    each = product > sum ? 1.0F : product < sum ? -1.0F : 0.0F;
  }
  return signs;
}

void update_group(const GroupState& state, const GroupGradients& gradients, std::span<const UpdateSpan> spans,
                  ThreadTeam& team) {
  RP_ASSERT(gradients.num_elements == state.num_elements && gradients.num_uses >= 1);
  for_each_chunk(state.num_elements, team,
                 [&](std::size_t begin, std::size_t end) { update_range(state, gradients, spans, begin, end); });
}

void update_group(const GroupState& state, const GroupGradients& gradients, std::span<const UpdateSpan> spans,
                  ThreadTeam& team, UpdateJournal& journal, std::uint64_t pass) {
  RP_ASSERT(gradients.num_elements == state.num_elements && gradients.num_uses >= 1);
  journal.run(pass, state, kChunkElements, team, [&](const GroupState& with_undo, std::size_t begin, std::size_t end) {
    update_range(with_undo, gradients, spans, begin, end);
  });
}

void update_group(const GroupState& state, const GroupGradients& gradients, const UpdateStep& step, ThreadTeam& team) {
  const UpdateSpan whole{.begin = 0, .end = state.num_elements, .step = step};
  update_group(state, gradients, std::span(&whole, 1), team);
}

void skip_group(const GroupState& state, ThreadTeam& team) {
  for_each_chunk(state.num_elements, team, [&](std::size_t begin, std::size_t end) {
    if (state.working != nullptr) update_kernels().skip(state, begin, end);
    if (state.master != state.old_master) {
      std::memcpy(state.master + begin, state.old_master + begin, (end - begin) * sizeof(float));
    }
  });
}

void add_gradients(float* sum, const GroupGradients& gradients, ThreadTeam& team, bool begins) {
  RP_ASSERT(gradients.num_uses >= 1);
  const auto add = [&](std::size_t begin, std::size_t end) {
    if (begins) std::fill(sum + begin, sum + end, 0.0F);
    update_kernels().add(sum, gradients, begin, end);
  };
  // As long as what another node sends in one message: waking the other threads takes longer than adding it.
  constexpr std::size_t kChunksOfOneThread = 2;
  if (num_chunks(gradients.num_elements) <= kChunksOfOneThread) return add(0, gradients.num_elements);
  for_each_chunk(gradients.num_elements, team, add);
}

void write_gradient(float* out, const GroupGradients& gradients, const UpdateStep& step, ThreadTeam& team) {
  for_each_chunk(gradients.num_elements, team, [&](std::size_t begin, std::size_t end) {
    std::fill(out + begin, out + end, 0.0F);
    update_kernels().add(out, gradients, begin, end);
    for (std::size_t i = begin; i < end; ++i) {
      float g = out[i] * step.gradient_scale;
      if (step.clips_values) {
        g = step.max_value < g ? step.max_value : g;
        g = -step.max_value > g ? -step.max_value : g;
      }
      out[i] = g;
    }
  });
}

namespace {

double squares_of_chunk(const GroupGradients& gradients, std::size_t begin, std::size_t end) {
  std::array<double, kNumSquareLanes> lanes{};
  update_kernels().squares(gradients, begin, end, lanes.data());
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void sum_squares_of_chunks(const GroupGradients& gradients, std::span<double> sums, ThreadTeam& team) {
  RP_ASSERT((gradients.num_uses >= 1 && sums.size() == num_chunks(gradients.num_elements)));
  for_each_chunk(gradients.num_elements, team, [&](std::size_t begin, std::size_t end) {
    sums[begin / kChunkElements] = squares_of_chunk(gradients, begin, end);
  });
}

double add_in_order(std::span<const double> sums) { return std::accumulate(sums.begin(), sums.end(), 0.0); }

double round_gradient(const float* sums, void* rounded, DType dtype, std::size_t num_elements,
                      std::span<double> partial_sums, ThreadTeam& team) {
  const void* const use = rounded;
  const GroupGradients gradient{.uses = &use, .num_uses = 1, .dtype = dtype, .num_elements = num_elements};
  const GroupState rounding{
      .old_master = sums, .working = rounded, .working_dtype = dtype, .num_elements = num_elements};
  const std::span<double> squares = partial_sums.first(num_chunks(num_elements));
  for_each_chunk(num_elements, team, [&](std::size_t begin, std::size_t end) {
    update_kernels().skip(rounding, begin, end);
    squares[begin / kChunkElements] = squares_of_chunk(gradient, begin, end);
  });
  return add_in_order(squares);
}

}  // namespace rp
