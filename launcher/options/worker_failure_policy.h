// launcher/options/worker_failure_policy.h
// Names what follows the death of a worker: --on-worker-failure.
#pragma once

#include <cstdint>

namespace rp {

enum class WorkerFailurePolicy : std::uint8_t {
  kAbort,   // the run ends
  kReplay,  // a replacement starts; without one, the run goes on with a worker less
  kShrink,  // the run goes on with a worker less
};

}  // namespace rp
