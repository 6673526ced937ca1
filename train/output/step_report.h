// train/output/step_report.h
// The numbers that are reported about one step or evaluation, on the screen and in files.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace rp {

struct StepReport {
  std::int64_t step = 0;  // counted from 1 over the whole run, including earlier parts of a resumed run
  double loss = 0;        // cross entropy: mean over the step's trained tokens, before its update
  std::optional<double> z_loss{};
  struct Experts {
    double auxiliary_loss = 0;
    double most_loaded = 0, least_loaded = 0;  // tokens of the expert, relative to an even load
  };
  std::optional<Experts> experts{};
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;          // positions that are computed, without padding
  std::int64_t trained_tokens = 0;  // of `tokens`, those that the loss is a mean over
  std::int64_t padded_tokens = 0;   // positions of padding
  std::uint64_t epoch = 0;          // the epoch of the step's first sequence, from 0
  double seconds = 0;               // since the previous step was done
  double tokens_per_second = 0;     // `tokens` a second
  double busy = 0;  // share of the workers' time in which layers compute, over recent steps; 0: not known yet
  std::uint64_t host_bytes = 0;  // resident memory of the coordinator, including the host store
  std::uint64_t staged_bytes =
      0;  // copied through pinned buffers since the previous step (WorkerMemoryUse::staged_bytes)
  double eta_seconds = 0;
};

struct EvaluationReport {
  std::int64_t step = 0;  // the step that produced the evaluated weights; 0: the run's initial weights
  double loss = 0;        // cross entropy: mean over trained tokens
  std::int64_t trained_tokens = 0;
  double seconds = 0;
  bool is_best = false;  // the best of the run so far

  [[nodiscard]] double perplexity() const { return std::exp(loss); }
};

}  // namespace rp
