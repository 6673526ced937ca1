#include "worker/weight_uploader.h"

#include "common/system/crash_point.h"
#include "worker/stage_memory.h"

namespace rp {

WeightUploader::WeightUploader(WorkerParts& worker)
    : worker_(worker),
      stream_(worker.device.stream(StreamKind::kUploadParameters)),
      waits_(worker.waits(WorkerThread::kWeightUploader)),
      commands_(worker.store.command_reader(worker.number)),
      copies_(stream_, worker.store.header().weights_yield != 0),
      weights_ready_(worker.device, kStageBuffers) {}

void WeightUploader::wake() const {
  commands_.wake();
  copies_.wake();
  weights_ready_.wake();
}

void WeightUploader::run() {
  std::uint64_t serial = 0;
  while (const auto task = waits_.next_task(worker_.flow.free_tasks)) {
    if (!take_command((*task)->command)) return;
    (*task)->serial = ++serial;
    if (!feed(**task)) return;
  }
}

bool WeightUploader::take_command(Command& command) {
  while (!commands_.try_pop(command)) {
    waits_.record().publish_once({.kind = WaitKind::kNextTask});
    // A run may pause between two rounds for as long as the user's program needs.
    if (commands_.wait(worker_.flow.limits(kNsPerSecond)) == WaitResult::kStopped) return false;
  }
  waits_.record().publish_none();
  RP_CRASH_POINT("worker.weights.takes_command");
  worker_.observers.command_taken(command);
  return true;
}

bool WeightUploader::feed(RunningTask& task) {
  if (task.command.phase != Phase::kForward) prepare_gradients(task.command);
  // Buffers are granted in slot order, because only this thread takes them.
  task.stage_buffer = waits_.take_buffer(task.command, WaitKind::kOwnStageBuffer, worker_.flow.free_stage_buffers);
  if (task.stage_buffer == nullptr) return false;
  stream_.wait_event(*task.stage_buffer->computed);
  task.gradient_buffer = nullptr;
  place_weights(task, worker_.store.catalogue(), worker_.device);
  worker_.flow.to_fetch.push(&task);
  worker_.flow.to_run.push(&task);
  return upload_weights(task);
}

// The whole pipeline waits for the stage runner. So the memory for a task that needs more than all
// earlier ones is prepared here, before the stage runner needs it.
void WeightUploader::prepare_gradients(const Command& command) {
  const auto prepare = [this](std::uint64_t bytes, std::uint64_t& most, MemoryUse use) {
    if (bytes <= most) return;
    most = bytes;
    worker_.device.prepare(bytes, use);
  };
  const GradientBytes bytes = gradient_bytes(command, worker_.store.catalogue());
  prepare(bytes.rounded, prepared_.rounded, MemoryUse::kGradients);
  prepare(bytes.accumulators, prepared_.accumulators, MemoryUse::kAccumulators);
}

bool WeightUploader::upload_weights(RunningTask& task) {
  const std::byte* last = nullptr;
  task.weights_known_ns = now_ns();
  for (const UseMemory& memory : task.uses) {
    if (last != nullptr && memory.weights <= last) continue;  // a tied weight group that is uploaded already
    last = memory.weights;
    if (!upload_group(task, memory)) return false;
  }
  if (!find_loss_scale(task)) return false;
  task.weights_enqueued_ns = now_ns();
  weights_ready_.publish(task.serial, stream_);
  return true;
}

bool WeightUploader::upload_group(RunningTask& task, const UseMemory& memory) {
  const Command& command = task.command;
  Store& store = worker_.store;
  const UseRecord& use = store.catalogue().uses()[memory.use];
  const WeightGroupRecord& group = store.catalogue().weight_groups()[use.group];
  const Version version = group.version_in(command.version);
  const NumberWord<Version>& published = store.published(use.group);
  const bool was_published = published.observe() >= version;
  if (!waits_.wait(
          command,
          {.kind = WaitKind::kWeights, .numbers = {static_cast<std::int64_t>(version.value()), use.group.value()}},
          [&](const WaitLimits& limits) { return published.wait_at_least(version, limits); })) {
    return false;
  }
  RP_CRASH_POINT("worker.weights.are_published");
  if (!was_published) task.weights_known_ns = now_ns();
  worker_.observers.weights_published(command, memory.use, version);
  const auto room = [&](auto wait_once) { return waits_.wait(command, {.kind = WaitKind::kOwnCopies}, wait_once); };
  const auto enqueue_piece = [&](std::uint64_t bytes, auto enqueue) {
    worker_.observers.copy_begun(StreamKind::kUploadParameters);
    enqueue();
    worker_.observers.weights_piece_enqueued(command, memory.use, version, bytes);
  };
  const std::byte* const from = store.working_copy(use.group, version).data();
  if (!copies_.copy(const_cast<std::byte*>(memory.weights), from, group.bytes(), room, enqueue_piece)) {
    return false;
  }
  RP_CRASH_POINT("worker.weights.are_enqueued");
  worker_.observers.weights_enqueued(command, memory.use, version, memory.weights);
  return true;
}

// Waits for the version of the loss scale, because a task without trained weights has not waited
// for any version yet.
bool WeightUploader::find_loss_scale(RunningTask& task) {
  const Command& command = task.command;
  task.loss_scale = 1;
  if (command.phase == Phase::kForward || !command.has(Command::kScalesLoss)) return true;
  const LossScaleRecord& record = worker_.store.loss_scale(command.pipeline);
  if (!waits_.wait(command,
                   {.kind = WaitKind::kLossScale,
                    .numbers = {static_cast<std::int64_t>(command.version.value()), command.pipeline}},
                   [&](const WaitLimits& limits) { return record.version.wait_at_least(command.version, limits); })) {
    return false;
  }
  task.loss_scale = record.scales[LossScaleRecord::place_of(command.version)];
  return true;
}

}  // namespace rp
