// coordinator/updates/loss_scaler.h
// Keeps the loss scale of a pipeline for each version of the weights, and publishes it to the
// workers: see LossScaling and LossScaleRecord. Without loss scaling, every scale is 1 and nothing
// is published.
//
// Owned by the Updates, which use it in one thread at a time. The Store must outlive it.
#pragma once

#include <cstdint>
#include <optional>

#include "hoststore/store.h"
#include "roundpipe/optimizer.h"

namespace rp {

// The part of a saved state that describes loss scaling.
struct LossScaleHistory {
  double scale = 1;           // of the newest version
  double previous_scale = 1;  // of the version before it, with which an asynchronous round computes
  int steps_since_overflow = 0;
};

class LossScaler {
 public:
  // Sets the initial scale for version 0.
  LossScaler(Store& store, std::uint32_t pipeline, const std::optional<LossScaling>& scaling);

  [[nodiscard]] bool is_on() const { return scaling_.has_value(); }

  // Returns the scale of a version. REQUIRES: it is one of the last LossScaleRecord::kNumScales
  // versions.
  [[nodiscard]] double scale_of(Version version) const;

  // Computes and publishes the scale of `version`. `overflow`: whether the step that makes this
  // version overflowed. REQUIRES: called before any weight group of this version is published.
  void publish(Version version, bool overflow);

  [[nodiscard]] LossScaleHistory history(Version version) const;
  void restart_at(Version version, const LossScaleHistory& history);

 private:
  [[nodiscard]] double& place_of(Version version) const { return record_.scales[LossScaleRecord::place_of(version)]; }

  LossScaleRecord& record_;
  const std::optional<LossScaling> scaling_;
  int steps_since_overflow_ = 0;
};

}  // namespace rp
