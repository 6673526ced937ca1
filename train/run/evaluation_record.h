// train/run/evaluation_record.h
// The evaluations of a run so far: which one was the best, and whether it is time to stop.
#pragma once

#include <cstdint>
#include <limits>

namespace rp {

// Part of a checkpoint: a resumed run goes on as one that was never interrupted.
struct EvaluationRecord {
  std::int64_t last_step = -1;  // of the last evaluation; -1: none
  std::int64_t best_step = -1;
  double best_loss = std::numeric_limits<double>::infinity();
  std::int64_t num_since_best = 0;  // evaluations

  // An evaluation of the weights after `step` steps. Returns whether it is the best so far.
  bool add(std::int64_t step, double loss) {
    last_step = step;
    const bool is_best = loss < best_loss;
    num_since_best = is_best ? 0 : num_since_best + 1;
    if (!is_best) return false;
    best_step = step;
    best_loss = loss;
    return true;
  }

  bool operator==(const EvaluationRecord&) const = default;
};

}  // namespace rp
