// coordinator/updates/update_trace.h
// Records the updates of a pipeline in the run's trace.
//
// Owned by the CoordinatorTrace, used by the thread of the Updates. Without a journal, all methods
// do nothing.
#pragma once

#include <cstdint>

#include "hoststore/catalogue.h"
#include "hoststore/records/trace_journal.h"

namespace rp {

class UpdateTrace {
 public:
  UpdateTrace(TraceJournal* journal, const Catalogue& catalogue, std::uint32_t pipeline)
      : track_(journal, 0, static_cast<std::uint32_t>(CoordinatorTrack::kUpdates) + pipeline),
        catalogue_(catalogue),
        pipeline_(pipeline) {}

  [[nodiscard]] std::int64_t now() const { return track_.now(); }
  [[nodiscard]] TraceTrack* waits() { return track_.is_on() ? &track_ : nullptr; }
  // Declares that step k makes `version` + k from now on. REQUIRES: nothing in flight.
  void set_version_of_step_0(Version version) { version_of_step_0_ = version; }

  // Records a pass over a weight group, for the step that makes `version`. The pass began at
  // `since` and ends now.
  void group(TraceKind kind, Version version, GroupId group, std::int64_t since) {
    if (!track_.is_on()) return;
    const CatalogueLayer layer = catalogue_.uses()[catalogue_.weight_groups()[group].first_use].layer;
    const std::int32_t number = catalogue_.pipelines()[pipeline_].layer_of(layer);
    add(kind, version, {.group = group.value(), .first_layer = number, .end_layer = number + 1}, since);
  }
  // Records the update of all groups at once by the user's function.
  void function(Version version, std::int64_t since) {
    if (!track_.is_on()) return;
    const auto num_layers = static_cast<std::int32_t>(catalogue_.pipelines()[pipeline_].num_layers);
    add(TraceKind::kUpdate, version, {.group = -1, .first_layer = 0, .end_layer = num_layers}, since);
  }

 private:
  struct Part {
    std::int64_t group = -1;
    std::int32_t first_layer = -1;
    std::int32_t end_layer = -1;
  };
  void add(TraceKind kind, Version version, const Part& part, std::int64_t since) {
    const auto step = static_cast<std::int64_t>(version - version_of_step_0_);
    track_.add({.kind = kind,
                .begin_ns = since,
                .end_ns = now_ns(),
                .pipeline = static_cast<std::int32_t>(pipeline_),
                .first_layer = part.first_layer,
                .end_layer = part.end_layer,
                .numbers = {step, static_cast<std::int64_t>(version.value()), part.group}});
  }

  TraceTrack track_;
  const Catalogue& catalogue_;
  const std::uint32_t pipeline_;
  Version version_of_step_0_{};
};

}  // namespace rp
