// train/run/evaluation_record.h
// Tracks the best evaluation of a run so far, and how many evaluations followed it.
#pragma once

#include <cstdint>
#include <limits>

namespace rp {

// The last and the best evaluation of a run. A checkpoint contains it, so that a resumed run
// continues like one that was never interrupted.
struct EvaluationRecord {
  std::int64_t last_step = -1;  // step of the last evaluation; -1: none
  std::int64_t best_step = -1;
  double best_loss = std::numeric_limits<double>::infinity();
  std::int64_t num_since_best = 0;  // number of evaluations since the best one

  // Adds an evaluation of the weights after `step` steps. Returns whether it is the best so far.
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
