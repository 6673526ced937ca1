// models/layers/strict_determinism.h
// LibTorch's deterministic mode without "warn only", for a time.
#pragma once

#include <ATen/Context.h>

namespace rp::models {

// While it lives, where deterministic algorithms are asked for at all, warn_only is off. Some of LibTorch's operators
// (attention's backward) have an algorithm with a fixed order, but take it only then; a process that only wants to be
// warned of operators without one would not get it. The mode is the process's: no other thread may compute in the
// meantime.
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
