// models/layers/strict_determinism.h
// Switches LibTorch's deterministic mode to strict (not "warn only") for a scope.
#pragma once

#include <ATen/Context.h>

namespace rp::models {

// As long as it exists, warn_only is off if deterministic algorithms are enabled at all. Some of
// LibTorch's operators, such as the backward pass of attention, have an algorithm with a fixed
// order but use it only in this mode. A process that has set "warn only", because it only wants
// warnings about operators without such an algorithm, would not get it. The mode belongs to the
// process, so no other thread may compute at the same time.
class StrictDeterminism {
 public:
  StrictDeterminism()
      : is_deterministic_(at::globalContext().deterministicAlgorithms()),
        warns_only_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    if (is_deterministic_) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~StrictDeterminism() {
    if (is_deterministic_) at::globalContext().setDeterministicAlgorithms(true, warns_only_);
  }
  StrictDeterminism(const StrictDeterminism&) = delete;
  StrictDeterminism& operator=(const StrictDeterminism&) = delete;

 private:
  const bool is_deterministic_;
  const bool warns_only_;
};

}  // namespace rp::models
