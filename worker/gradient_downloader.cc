#include "worker/gradient_downloader.h"

#include "common/check.h"
#include "common/system/crash_point.h"

namespace rp {

GradientDownloader::GradientDownloader(WorkerParts& worker, StageExecutor& executor)
    : worker_(worker),
      executor_(executor),
      stream_(worker.device.stream(StreamKind::kDownloadGradients)),
      waits_(worker.waits(WorkerThread::kGradientDownloader)),
      copies_(stream_, worker.store.header().gradients_yield != 0),
      completions_(worker.store.completion_writer(worker.number)) {}

void GradientDownloader::run() {
  while (const auto next = waits_.next_task(worker_.flow.to_finish)) {
    RunningTask& task = **next;
    if (task.completion.outcome == TaskOutcome::kDone && task.gradient_buffer != nullptr) {
      stream_.wait_event(*task.gradient_buffer->computed);
      if (!enqueue_gradients(task)) return;
    }
    stream_.wait_event(*task.written);
    task.gradient_downloader = this;
    stream_.call(&GradientDownloader::complete, &task);
  }
}

void GradientDownloader::write_totals(const RunningTask& task) const {
  const RoundTable table = worker_.store.round_table(task.command);
  const Phase phase = task.command.phase;
  for (std::size_t m = 0; m < task.totals.losses.size(); ++m) table.loss(static_cast<int>(m)) = task.totals.losses[m];
  for (std::size_t i = 0; i < task.uses.size(); ++i) {
    if (task.uses[i].gradient != nullptr) table.square_sum(task.uses[i].use) = task.totals.square_sums[i];
  }
  for (std::size_t i = 0; i < task.totals.layer_times.size(); ++i) {
    LayerTime& time = table.layer_time(task.command.first_layer + static_cast<int>(i));
    const LayerTime& measured = task.totals.layer_times[i];
    // A forward stage measures no backward pass, and a backward stage measures no forward pass.
    if (phase != Phase::kBackward) time.forward_ns = measured.forward_ns;
    if (phase == Phase::kBackward) time.recompute_ns = measured.recompute_ns;
    if (phase != Phase::kForward) time.backward_ns = measured.backward_ns;
  }
  for (std::size_t i = 0; i < task.totals.layer_memory.size(); ++i) {
    LayerMemory& memory = table.layer_memory(task.command.first_layer + static_cast<int>(i));
    const LayerMemory& measured = task.totals.layer_memory[i];
    if (phase != Phase::kBackward) {
      memory.input_bytes = measured.input_bytes;
      memory.output_bytes = measured.output_bytes;
      memory.forward_workspace_bytes = measured.forward_workspace_bytes;
    }
    if (phase == Phase::kForward) continue;
    memory.saved_bytes = measured.saved_bytes;
    memory.recompute_workspace_bytes = measured.recompute_workspace_bytes;
    memory.backward_workspace_bytes = measured.backward_workspace_bytes;
  }
}

DeviceMemoryPeaks GradientDownloader::memory_of(const RunningTask& task) const {
  DeviceMemoryPeaks peaks = worker_.device.memory_peaks();
  peaks.resident_bytes = task.totals.resident_bytes + peaks.peak_by_use[MemoryUse::kResults];
  return peaks;
}

bool GradientDownloader::enqueue_gradients(RunningTask& task) {
  // Deep layers come first, because their updates can start first.
  for (std::size_t i = task.uses.size(); i-- > 0;) {
    if (task.uses[i].gradient != nullptr && !enqueue_gradient(task, i)) return false;
  }
  return true;
}

bool GradientDownloader::enqueue_gradient(RunningTask& task, std::size_t use) {
  const Command& command = task.command;
  const UseMemory& memory = task.uses[use];
  Store& store = worker_.store;
  const UseRecord& record = store.catalogue().uses()[memory.use];
  if (!waits_.wait(command,
                   {.kind = WaitKind::kGradientReleased,
                    .numbers = {memory.use.value(), static_cast<std::int64_t>(command.released_before)}},
                   [&](const WaitLimits& limits) {
                     return store.gradient_released(memory.use).wait_at_least(command.released_before, limits);
                   })) {
    return false;
  }
  RP_CRASH_POINT("worker.gradients.are_released");
  const auto room = [&](auto wait_once) { return waits_.wait(command, {.kind = WaitKind::kOwnCopies}, wait_once); };
  const auto enqueue_piece = [&](std::uint64_t piece_bytes, auto enqueue) {
    worker_.observers.copy_begun(StreamKind::kDownloadGradients);
    enqueue();
    worker_.observers.gradient_piece_enqueued(command, memory.use, piece_bytes);
  };
  const std::uint64_t bytes = store.catalogue().weight_groups()[record.group].bytes();
  if (!copies_.copy(store.gradients(record.gradient_offset), memory.gradient, bytes, room, enqueue_piece)) return false;
  worker_.observers.gradient_enqueued(command, memory.use);
  return true;
}

// The task waited for inputs whenever it was not computing between its first computation and its
// last.
void GradientDownloader::report_times(RunningTask& task) {
  const std::vector<MicrobatchTime>& times = task.totals.times;
  if (times.empty()) return;  // the task failed before its first microbatch
  Completion& completion = task.completion;
  completion.start_ns = times.front().begin_ns;
  completion.end_ns = times.back().end_ns;
  completion.wait_ns = completion.end_ns - completion.start_ns;
  for (const MicrobatchTime& time : times) completion.wait_ns -= time.end_ns - time.begin_ns;
  worker_.observers.task_done(task.command, times);
}

void GradientDownloader::complete(void* argument) {
  auto& task = *static_cast<RunningTask*>(argument);
  GradientDownloader& self = *task.gradient_downloader;
  TaskFlow& flow = self.worker_.flow;
  if (task.completion.outcome == TaskOutcome::kDone) {
    RP_CRASH_POINT("worker.completion.collects");
    self.executor_.collect(task.totals);
    self.write_totals(task);
    RP_CRASH_POINT("worker.completion.writes_totals");
    task.completion.compute = task.totals.compute;
    task.completion.memory = self.memory_of(task);
  }
  self.report_times(task);
  if (task.gradient_buffer != nullptr) flow.free_gradient_buffers.push(task.gradient_buffer);
  RP_CRASH_POINT("worker.completion.pushes");
  RP_ASSERT(self.completions_.try_push(task.completion));  // the coordinator is ahead by less than the ring holds
  RP_CRASH_POINT("worker.completion.has_pushed");
  flow.free_tasks.push(&task);
}

}  // namespace rp
