#include "coordinator/rounds/task_failure.h"

#include <algorithm>
#include <string>

#include "common/text.h"

namespace rp {

WorkerError task_failure(Store& store, const Round& round, const Slot& slot) {
  const FailureRecord& record = store.failure(slot.worker);
  const TaskPlace place{.worker = slot.worker,
                        .round = round.number < kFirstEvaluation ? static_cast<std::int64_t>(round.number) : -1,
                        .step = static_cast<std::int64_t>(round.step),
                        .first_layer = slot.layers.first,
                        .end_layer = slot.layers.end,
                        .layer = std::max<std::int64_t>(record.layer, -1),
                        .microbatch = record.microbatch};
  const std::string microbatch = record.microbatch >= 0 ? cat(", microbatch ", record.microbatch) : "";
  const std::string where = cat(" in the ", phase_name(slot.phase), " stage of layers ", slot.layers.first, "-",
                                slot.layers.end - 1, microbatch, ", step ", round.step, ", on worker ", slot.worker);
  std::string who = "the task";
  if (record.layer >= 0) {
    const LayerRecord& layer = store.catalogue().layers()[round.catalogue_layer(static_cast<int>(record.layer))];
    who = cat("layer ", record.layer, " (", layer.name.data(), ")");
  } else if (record.layer == FailureRecord::kLoss) {
    who = "the loss";
  }
  return {cat(who, " failed", where, ": ", record.message.data()), place, static_cast<ExitCode>(record.code)};
}

}  // namespace rp
