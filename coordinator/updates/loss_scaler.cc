#include "coordinator/updates/loss_scaler.h"

namespace rp {

LossScaler::LossScaler(Store& store, std::uint32_t pipeline, const std::optional<LossScaling>& scaling)
    : record_(store.loss_scale(pipeline)), scaling_(scaling) {
  if (scaling_) place_of(Version(0)) = scaling_->initial_scale;  // no worker has attached yet
}

double LossScaler::scale_of(Version version) const { return scaling_ ? place_of(version) : 1; }

void LossScaler::publish(Version version, bool overflow) {
  if (!scaling_) return;
  double scale = place_of(version - 1);
  if (overflow) {
    scale *= scaling_->backoff_factor;
    steps_since_overflow_ = 0;
  } else if (++steps_since_overflow_ == scaling_->growth_interval) {
    scale *= scaling_->growth_factor;
    steps_since_overflow_ = 0;
  }
  place_of(version) = scale;
  record_.version.publish(version);
}

LossScaleHistory LossScaler::history(Version version) const {
  return {.scale = scale_of(version),
          .previous_scale = scale_of(version == Version(0) ? version : version - 1),
          .steps_since_overflow = steps_since_overflow_};
}

void LossScaler::restart_at(Version version, const LossScaleHistory& history) {
  if (!scaling_) return;
  steps_since_overflow_ = history.steps_since_overflow;
  place_of(version - 1) = history.previous_scale;
  place_of(version) = history.scale;
  record_.version.publish(version);
}

}  // namespace rp
