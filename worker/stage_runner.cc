#include "worker/stage_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/system/crash_point.h"
#include "roundpipe/error.h"
#include "worker/stage_memory.h"

namespace rp {

StageRunner::StageRunner(WorkerParts& worker, StageExecutor& executor, const WeightUploader& weight_uploader,
                         InputBuffers& inputs)
    : worker_(worker),
      executor_(executor),
      compute_(worker.device.stream(StreamKind::kCompute)),
      weight_uploader_(weight_uploader),
      inputs_(inputs),
      outputs_(worker.store, worker.number, worker.device, worker.signals, worker.observers),
      waits_(worker.waits(WorkerThread::kStageRunner)) {}

void StageRunner::run() {
  worker_.observers.runner_idle();
  while (const auto task = waits_.next_task(worker_.flow.to_run)) {
    run_task(**task);
    // If the worker stops, a dump shows the last task.
    if (!worker_.flow.observe_stop()) worker_.observers.runner_idle();
  }
}

void StageRunner::run_task(RunningTask& task) {
  if (halted_) return;
  worker_.observers.task_taken(task.command);
  RP_CRASH_POINT("worker.compute.takes_task");
  task.completion = {.slot = task.command.slot};
  if (task.command.phase != Phase::kForward && !take_gradient_buffer(task)) return;
  if (!waits_.wait(task.command, {.kind = WaitKind::kOwnWeights},
                   [&](const WaitLimits& limits) { return weight_uploader_.wait_weights(task.serial, limits); })) {
    return;
  }
  RP_CRASH_POINT("worker.compute.has_weights");
  weight_uploader_.compute_after_weights(task.serial, compute_);
  if (!run_microbatches(task)) return;
  compute_.record(*task.stage_buffer->computed);
  if (task.completion.outcome == TaskOutcome::kDone) {
    // The results are downloaded on the output download stream. On the compute stream, the next
    // task's kernels would have to wait while the link is busy with outputs or gradients.
    outputs_.wait_event(*task.stage_buffer->computed);
    executor_.download(task.totals);
  }
  RP_CRASH_POINT("worker.compute.ends_task");
  outputs_.record(*task.written);
  worker_.flow.free_stage_buffers.push(task.stage_buffer);
  worker_.flow.to_finish.push(&task);
}

bool StageRunner::take_gradient_buffer(RunningTask& task) {
  task.gradient_buffer =
      waits_.take_buffer(task.command, WaitKind::kOwnGradientBuffer, worker_.flow.free_gradient_buffers);
  if (task.gradient_buffer == nullptr) return false;
  if (!place_gradients(task, accumulators_, worker_.store.catalogue(), worker_.device)) executor_.clear(task.uses);
  return true;
}

bool StageRunner::run_microbatches(RunningTask& task) {
  int microbatch = -1;
  const auto computation = worker_.observers.task(task.command);
  task.totals.losses.clear();
  task.totals.times.clear();
  try {
    executor_.begin(task.stage_task());
    for (microbatch = 0; microbatch < task.command.num_microbatches; ++microbatch) {
      // The recompute does not wait for the gradient, and is usually finished when the gradient
      // arrives.
      if (task.command.phase == Phase::kBackward && !recompute(task, microbatch)) return false;
      if (!run_microbatch(task, microbatch)) return false;
    }
    microbatch = -1;
    executor_.end(task.stage_task(), task.totals);
    if (task.gradient_buffer != nullptr) compute_.record(*task.gradient_buffer->computed);
  } catch (const LayerFailure& failure) {
    worker_.device.check_works();
    fail_task(task, failure.layer(), microbatch, failure.what(), failure.code());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // of user code: see run_user_code()
    worker_.device.check_works();
    fail_task(task, FailureRecord::kElsewhere, microbatch, error.what(), ExitCode::kUserError);
  }
  return true;
}

bool StageRunner::recompute(RunningTask& task, int microbatch) {
  const std::uint64_t n = next_microbatch_;
  if (!wait_inputs(task, microbatch, [&](const WaitLimits& limits) { return inputs_.wait_recomputable(n, limits); }))
    return false;
  inputs_.compute_after_recomputable(n, compute_);
  const auto computation = worker_.observers.microbatch(microbatch, /*is_recompute=*/true);
  const std::int64_t since = now_ns();
  executor_.recompute(task.stage_task(), microbatch, inputs_.inputs(n));
  RP_CRASH_POINT("worker.compute.recomputes");
  task.totals.times.push_back({microbatch, /*is_recompute=*/true, since, now_ns()});
  return true;
}

bool StageRunner::run_microbatch(RunningTask& task, int microbatch) {
  const Command& command = task.command;
  const std::uint64_t n = next_microbatch_;
  if (!wait_inputs(task, microbatch, [&](const WaitLimits& limits) { return inputs_.wait_uploaded(n, limits); }))
    return false;
  if (!waits_.wait(command, {.kind = WaitKind::kOwnOutputs},
                   [&](const WaitLimits& limits) { return outputs_.wait_room(limits); })) {
    return false;
  }
  inputs_.compute_after_uploaded(n, compute_);
  MicrobatchOutputs outputs;
  const auto computation = worker_.observers.microbatch(microbatch, /*is_recompute=*/false);
  const std::int64_t since = now_ns();
  RP_CRASH_POINT("worker.compute.begins_microbatch");
  executor_.run(task.stage_task(), microbatch, inputs_.inputs(n), outputs);
  RP_CRASH_POINT("worker.compute.ends_microbatch");
  task.totals.times.push_back({microbatch, /*is_recompute=*/false, since, now_ns()});
  inputs_.publish_computed(n, compute_);
  ++next_microbatch_;
  if (command.runs_loss()) task.totals.losses.push_back(outputs.losses);
  outputs_.write(command, microbatch, std::move(outputs));
  return true;
}

template <typename WaitOnce>
bool StageRunner::wait_inputs(RunningTask& task, int microbatch, WaitOnce wait_once) {
  if (!waits_.wait(task.command, {.kind = WaitKind::kOwnInputs, .numbers = {microbatch}}, wait_once)) return false;
  worker_.observers.inputs_arrived(task.command, microbatch);
  publish_heartbeat();
  return true;
}

void StageRunner::publish_heartbeat() {
  SequenceWord& heartbeat = worker_.store.worker_words(worker_.number).heartbeat;
  heartbeat.publish_quietly(heartbeat.observe() + 1);
}

void StageRunner::fail_task(RunningTask& task, std::int64_t layer, int microbatch, const std::string& message,
                            ExitCode code) {
  FailureRecord& record = worker_.store.failure(worker_.number);
  record.layer = layer;
  record.microbatch = microbatch;
  record.code = static_cast<std::uint64_t>(code);
  const std::size_t length = std::min(message.size(), record.message.size() - 1);
  std::memcpy(record.message.data(), message.data(), length);
  record.message[length] = '\0';
  task.completion.outcome = TaskOutcome::kFailed;
  halted_ = true;
}

}  // namespace rp
