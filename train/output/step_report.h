// train/output/step_report.h
// What is said of one step or evaluation, on the screen as in files.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace rp {

struct StepReport {
  std::int64_t step = 0;  // counted from 1 over the whole run, resumed parts included
  double loss = 0;        // cross entropy: mean over the step's trained tokens, before its update
  std::optional<double> z_loss{};
  struct Experts {
    double auxiliary_loss = 0;
    double most_loaded = 0, least_loaded = 0;  // of an even load
  };
  std::optional<Experts> experts{};
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;          // of documents: all positions that are computed, less padding
  std::int64_t trained_tokens = 0;  // of these, what the loss is a mean over
  std::int64_t padded_tokens = 0;   // positions of padding
  std::uint64_t epoch = 0;          // of the step's first sequence, from 0
  double seconds = 0;               // since the step before was done
  double tokens_per_second = 0;     // of `tokens`
  double busy = 0;  // the share of the workers' time in which layers compute, of the last steps; 0: not known yet
  std::uint64_t host_bytes = 0;  // resident memory of the coordinator, the host store included
  std::uint64_t staged_bytes =
      0;  // copied by way of pinned buffers since the step before (WorkerMemoryUse::staged_bytes)
  double eta_seconds = 0;
};

struct EvaluationReport {
  std::int64_t step = 0;  // of which the weights are; 0: those that the run begins with
  double loss = 0;        // cross entropy: mean over trained tokens
  std::int64_t trained_tokens = 0;
  double seconds = 0;
  bool is_best = false;  // of the run so far

  [[nodiscard]] double perplexity() const { return std::exp(loss); }
};

}  // namespace rp
