#include "coordinator/rounds/task_failure.h"

#include <algorithm>
#include <string>

#include "common/text.h"

namespace rp {

WorkerError task_failure(Store& store, const Command& command, int worker) {
  const FailureRecord& record = store.failure(worker);
  const TaskPlace place{.worker = worker,
                        .round = command.round < kFirstEvaluation ? static_cast<std::int64_t>(command.round) : -1,
                        .step = static_cast<std::int64_t>(command.step),
                        .first_layer = command.first_layer,
                        .end_layer = command.end_layer,
                        .layer = std::max<std::int64_t>(record.layer, -1),
                        .microbatch = record.microbatch};
  const std::string microbatch = record.microbatch >= 0 ? cat(", microbatch ", record.microbatch) : "";
  const std::string where = cat(" in the ", phase_name(command.phase), " stage of layers ", command.first_layer, "-",
                                command.end_layer - 1, microbatch, ", step ", command.step, ", on worker ", worker);
  std::string who = "the task";
  if (record.layer >= 0) {
    const LayerRecord& layer = store.catalogue().layers()[command.catalogue_layer(static_cast<int>(record.layer))];
    who = cat("layer ", record.layer, " (", layer.name.data(), ")");
  } else if (record.layer == FailureRecord::kLoss) {
    who = "the loss";
  }
  return {cat(who, " failed", where, ": ", record.message.data()), place, static_cast<ExitCode>(record.code)};
}

}  // namespace rp
