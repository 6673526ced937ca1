#include "worker/gradient_downloader.h"

#include <vector>

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
      if (!(worker_.nodes == nullptr ? enqueue_gradients(task) : exchange_gradients(task))) return;
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
      memory.expanded_bytes = measured.expanded_bytes;
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
  if (worker_.nodes != nullptr) peaks.resident_bytes += worker_.nodes->device_bytes();
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
  if (!wait_released(command, memory.use)) return false;
  const std::uint64_t bytes = store.catalogue().weight_groups()[record.group].bytes();
  if (!copy(command, memory.use, store.gradients(record.gradient_offset), {memory.gradient, bytes})) return false;
  worker_.observers.gradient_enqueued(command, memory.use);
  return true;
}

bool GradientDownloader::wait_released(const Command& command, UseId use) {
  const Wait what{.kind = WaitKind::kGradientReleased,
                  .numbers = {use.value(), static_cast<std::int64_t>(command.released_before)}};
  const auto is_released = [&](const WaitLimits& limits) {
    return worker_.store.gradient_released(use).wait_at_least(command.released_before, limits);
  };
  if (!waits_.wait(command, what, is_released)) return false;
  RP_CRASH_POINT("worker.gradients.are_released");
  return true;
}

// All nodes make the same exchanges in this order. The next piece is exchanged while one is downloaded.
bool GradientDownloader::exchange_gradients(RunningTask& task) {
  struct PieceOfUse {
    UseId use;
    NodeGradients::Piece piece;
  };
  NodeGradients& nodes = *worker_.nodes;
  const Command& command = task.command;
  Store& store = worker_.store;
  waits_.record().publish(
      {.kind = WaitKind::kNodeGpus, .slot = static_cast<std::int64_t>(command.slot.number().value())});
  if (!nodes.connect(worker_.flow.limits(0).stop)) return false;
  waits_.record().publish_none();
  std::vector<PieceOfUse> pieces;
  for (std::size_t i = task.uses.size(); i-- > 0;) {
    const UseMemory& memory = task.uses[i];
    if (memory.gradient == nullptr) continue;
    const auto of_use = nodes.pieces_of(store.catalogue().uses()[memory.use].group, memory.gradient);
    if (of_use.empty()) worker_.observers.gradient_enqueued(command, memory.use);
    for (const NodeGradients::Piece& piece : of_use) pieces.push_back({.use = memory.use, .piece = piece});
  }
  const Wait for_nodes{.kind = WaitKind::kNodeGpus};
  const auto begin = [&](std::size_t i) {
    if (i >= pieces.size()) return true;
    nodes.begin(pieces[i].piece, *task.gradient_buffer->computed);
    return waits_.wait(command, for_nodes, [&](const WaitLimits& limits) { return nodes.wait_enqueued(limits); });
  };
  if (!begin(0)) return false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& [use, piece] = pieces[i];
    if (!begin(i + 1)) return false;
    if (!waits_.wait(command, for_nodes, [&](const WaitLimits& limits) { return nodes.wait_done(limits); }))
      return false;
    if (piece.number == 0 && !wait_released(command, use)) return false;
    std::byte* const to = store.gradients(store.catalogue().uses()[use].gradient_offset);
    for (const GradientRoute::Download& part : nodes.downloads(piece)) {
      if (!copy(command, use, to + part.to, part.from)) return false;
    }
    nodes.end(stream_);
    if (i + 1 == pieces.size() || pieces[i + 1].use != use) worker_.observers.gradient_enqueued(command, use);
  }
  return true;
}

bool GradientDownloader::copy(const Command& command, UseId use, std::byte* to, std::span<const std::byte> from) {
  const auto room = [&](auto wait_once) { return waits_.wait(command, {.kind = WaitKind::kOwnCopies}, wait_once); };
  const auto enqueue_piece = [&](std::uint64_t piece_bytes, auto enqueue) {
    worker_.observers.copy_begun(StreamKind::kDownloadGradients);
    enqueue();
    worker_.observers.gradient_piece_enqueued(command, use, piece_bytes);
  };
  return copies_.copy(to, from.data(), from.size(), room, enqueue_piece);
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
