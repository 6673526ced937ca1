// coordinator/updates/loss_scaler.h
// The loss scale of a pipeline, by version of the weights: see LossScaling and LossScaleRecord. Without loss scaling
// every scale is 1 and nothing is published.
//
// Owned by the Updates, which call it in one thread at a time. The Store must outlive it.
#pragma once

#include <cstdint>
#include <optional>

#include "hoststore/store.h"
#include "roundpipe/optimizer.h"

namespace rp {

// What a saved state knows of it.
struct LossScaleHistory {
  double scale = 1;           // of the newest version
  double previous_scale = 1;  // of the version before, which an asynchronous step computes with
  int steps_since_overflow = 0;
};

class LossScaler {
 public:
  // Version 0 has the initial scale.
  LossScaler(Store& store, std::uint32_t pipeline, const std::optional<LossScaling>& scaling);

  [[nodiscard]] bool is_on() const { return scaling_.has_value(); }

  // REQUIRES: one of the last LossScaleRecord::kNumScales versions.
  [[nodiscard]] double scale_of(std::uint64_t version) const;

  // The step that makes `version` overflowed, or not: publishes that version's scale. Before any weight group is
  // published.
  void publish(std::uint64_t version, bool overflow);

  [[nodiscard]] LossScaleHistory history(std::uint64_t version) const;
  void restart_at(std::uint64_t version, const LossScaleHistory& history);

 private:
  [[nodiscard]] double& place_of(std::uint64_t version) const {
    return record_.scales[version % LossScaleRecord::kNumScales];
  }

  LossScaleRecord& record_;
  const std::optional<LossScaling> scaling_;
  int steps_since_overflow_ = 0;
};

}  // namespace rp
