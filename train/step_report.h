// train/step_report.h
// What is told of one step, on the screen as in metrics.jsonl.
#pragma once

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
  double grad_norm = 0;   // before clipping
  double learning_rate = 0;
  std::int64_t trained_tokens = 0;
  std::uint64_t epoch = 0;  // of the step's first sequence, from 0
  double seconds = 0;       // since the step before was done
  double tokens_per_second = 0;  // all positions that are computed, padding included
  double busy = 0;  // the share of the workers' time in which layers compute, of the last steps; 0: not known yet
  std::uint64_t host_bytes = 0;  // resident memory of the coordinator, the host store included
  std::uint64_t staged_bytes = 0;  // copied by way of pinned buffers since the step before (WorkerMemoryUse::staged_bytes)
  double eta_seconds = 0;
};

}  // namespace rp
