#include "train/settings/defaults.h"

#include <algorithm>
#include <cmath>

namespace rp {
namespace {

constexpr std::int64_t kSequenceLength = 2048;
constexpr std::int64_t kTokensOfStep = 16384;
constexpr std::int64_t kMaxSequencesOfStep = 16;  // short sequences suggest that there are few data
constexpr std::int64_t kMicrobatches = 8;

// Returns the default learning rate, rounded to one digit. Larger models get smaller rates: 1e-5 at
// 7 billion parameters and above; below, the rate grows as 1 / sqrt(parameters), to at most ten
// times as much. LoRA uses 20 times as much. Measurements: docs/train.md, "Learning rates".
double learning_rate(std::int64_t num_parameters, bool is_lora) {
  constexpr double kParameters = 7e9, kFull = 1e-5, kLora = 2e-4;
  const double factor =
      std::clamp(std::sqrt(kParameters / static_cast<double>(std::max<std::int64_t>(num_parameters, 1))), 1.0, 10.0);
  const double rate = factor * (is_lora ? kLora : kFull);
  const double unit = std::pow(10.0, std::floor(std::log10(rate)));
  return std::round(rate / unit) * unit;
}

std::int64_t share_of(double share, std::int64_t steps) {
  return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(steps)));
}

}  // namespace

bool needs_model(const TrainSettings& s) {
  return s.sequence_length == 0 || s.batch_size == 0 || s.num_microbatches == 0 || s.learning_rate == 0;
}

void fill_in_by_model(TrainSettings& s, std::int64_t num_parameters, std::int64_t max_positions) {
  if (s.sequence_length == 0)
    s.sequence_length = max_positions > 0 ? std::min(kSequenceLength, max_positions) : kSequenceLength;
  if (s.batch_size == 0) {
    const std::int64_t of_round = std::max(
        std::max<std::int64_t>(std::min(kTokensOfStep / s.sequence_length, kMaxSequencesOfStep) / s.rounds_per_step, 1),
        s.num_microbatches);
    s.batch_size = of_round * s.rounds_per_step;
  }
  if (s.num_microbatches == 0) s.num_microbatches = std::min(kMicrobatches, s.sequences_of_round());
  if (s.learning_rate == 0) s.learning_rate = learning_rate(num_parameters, s.parts.lora.rank > 0);
}

void fill_in_by_data(TrainSettings& s, std::uint64_t num_sequences) {
  if (s.epochs > 0) {
    const double steps = std::ceil(s.epochs * static_cast<double>(num_sequences) / static_cast<double>(s.batch_size));
    s.max_steps = std::max<std::int64_t>(static_cast<std::int64_t>(steps), 1);
  }
  if (s.warmup_steps < 0) s.warmup_steps = share_of(0.03, s.max_steps);
  if (s.decay_steps < 0) s.decay_steps = share_of(0.1, s.max_steps);
  if (s.eval_every == 0 && s.evaluates()) s.eval_every = std::max<std::int64_t>(s.max_steps / 10, 1);
  if (s.log_every == 0) s.log_every = std::max<std::int64_t>(s.max_steps / 20, 1);
}

}  // namespace rp
