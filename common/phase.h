// common/phase.h
// A Phase says which passes a stage or task computes for its layers.
#pragma once

#include <cstdint>

namespace rp {

enum class Phase : std::uint32_t {
  kForward,
  kFused,     // forward, loss and backward
  kBackward,  // recompute, if needed, and backward
};

[[nodiscard]] constexpr const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward: return "forward";
    case Phase::kFused: return "fused";
    case Phase::kBackward: return "backward";
  }
  return "unknown";
}

}  // namespace rp
