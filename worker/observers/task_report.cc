#include "worker/observers/task_report.h"

namespace rp {

void TaskReport::publish(const Command& command, int microbatch) {
  board_.publish_state(ProcessState::kBusy);
  board_.publish_task({.epoch = static_cast<std::int64_t>(command.slot.epoch().value()),
                       .slot = static_cast<std::int64_t>(command.slot.number().value()),
                       .round = static_cast<std::int64_t>(command.round),
                       .step = static_cast<std::int64_t>(command.step),
                       .phase = command.phase,
                       .first_layer = command.first_layer,
                       .end_layer = command.end_layer,
                       .layer = -1,
                       .microbatch = microbatch,
                       .num_microbatches = command.num_microbatches});
}

void TaskReport::runner_idle() {
  board_.publish_state(ProcessState::kIdle);
  board_.publish_no_task();
}

}  // namespace rp
