#include "worker/worker.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/text.h"
#include "hoststore/crash_handler.h"
#include "roundpipe/error.h"
#include "worker/stage_memory.h"

namespace rp {

namespace {

std::string task_text(const Command& command) {
  return cat("slot ", number_of(command.slot), " (", phase_name(command.phase), " of layers ", command.first_layer, "-",
             command.end_layer - 1, ", ", round_text(static_cast<std::int64_t>(command.round)), ")");
}

std::int64_t slot_of(const Command& command) { return static_cast<std::int64_t>(number_of(command.slot)); }

}  // namespace

Worker::Worker(Store& store, int number, Device& device, StageExecutor& executor, std::optional<FaultBoardEntry> board,
               TraceJournal* trace)
    : store_(store),
      number_(number),
      device_(device),
      executor_(executor),
      trace_(trace, number, device),
      report_(board, trace_),
      check_(store, number, [this](std::exception_ptr error) { fail(std::move(error)); }),
      commands_(store.command_reader(number)),
      completions_(store.completion_writer(number)),
      inputs_(device),
      weight_copies_(device.stream(StreamKind::kUploadParameters), store.header().weights_give_way != 0),
      gradient_copies_(device.stream(StreamKind::kDownload), store.header().gradients_give_way != 0),
      outputs_(store, number, device, trace_) {
  for (RunningTask& task : tasks_) {
    task.worker = this;
    free_tasks_.push(&task);
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(store.header().stage_buffers, stage_buffers_.size()); ++i) {
    free_stage_buffers_.push(&stage_buffers_[i]);
  }
  for (GradientBuffer& buffer : gradient_buffers_) free_gradient_buffers_.push(&buffer);
}

Worker::~Worker() = default;

void Worker::serve() {
  WorkerWords& words = store_.worker_words(number_);
  const std::uint64_t epoch = store_.epoch().observe();
  words.acknowledged.publish(epoch + 1);
  if (epoch == kEndEpoch) return;  // the run ended before this worker began
  std::array<std::thread, 4> threads = {std::thread([this] { guard("rp-feeder", &Worker::feed); }),
                                        std::thread([this] { guard("rp-fetcher", &Worker::fetch); }),
                                        std::thread([this] { guard("rp-runner", &Worker::run); }),
                                        std::thread([this] { guard("rp-finisher", &Worker::finish); })};
  // Between two changes of the epoch there is nothing to do here, however long that is.
  while (store_.epoch().wait_at_least(epoch + 1, {&stop_, kNsPerSecond}) == WaitResult::kTimedOut) {
  }
  stop_all();
  for (std::thread& thread : threads) thread.join();
  for (const StreamKind kind : {StreamKind::kUploadParameters, StreamKind::kUploadActivations, StreamKind::kDownload}) {
    device_.stream(kind).drain();
  }
  MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void Worker::guard(const char* thread_name, void (Worker::*function)()) {
  pthread_setname_np(pthread_self(), thread_name);
  const SignalStack stack;  // a layer that overflows the stack is told of, too
  try {
    (this->*function)();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Worker::fail(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  stop_all();
}

void Worker::stop_all() {
  stop_.store(true, std::memory_order_release);
  for (auto* queue : {&free_tasks_, &to_fetch_, &to_run_, &to_finish_}) queue->close();
  free_stage_buffers_.close();
  free_gradient_buffers_.close();
  commands_.wake();
  inputs_.wake();
  weight_copies_.wake();
  gradient_copies_.wake();
  weights_ready_.wake();
  store_.epoch().wake();
}

template <typename WaitOnce>
bool Worker::wait(WorkerThread thread, const Command& command, const Wait& what, WaitOnce wait_once) {
  const WaitResult at_once = wait_once(WaitLimits{&stop_, 0});
  // What was signalled after a violation was found is not used.
  if (at_once != WaitResult::kTimedOut) return at_once == WaitResult::kReached && !stop_.load(std::memory_order_acquire);
  WaitRecord record = report_.waits(thread);
  Wait published = what;
  published.slot = slot_of(command);
  record.publish(published);
  // Two waits or more: after a pause of the whole run (Ctrl-Z, a debugger) the first one is over at once.
  const int patience = what.is_for_own_thread() ? 4 : 2;
  int silent_waits = 0;
  while (silent_waits < patience) {
    const std::uint64_t progress = store_.progress();
    const WaitResult result = wait_once(WaitLimits{&stop_, store_.header().wait_timeout_ns / 2});
    if (result == WaitResult::kReached) record.publish_none();
    if (result != WaitResult::kTimedOut) return result == WaitResult::kReached && !stop_.load(std::memory_order_acquire);
    const bool goes_on = store_.progress() != progress || store_.failed().observe() != 0;
    silent_waits = goes_on ? 0 : silent_waits + 1;
  }
  wait_failed(what, command);
}

void Worker::publish_heartbeat() {
  SequenceWord& heartbeat = store_.worker_words(number_).heartbeat;
  heartbeat.publish_quietly(heartbeat.observe() + 1);
}

void Worker::wait_failed(const Wait& what, const Command& command) {
  throw Error(ExitCode::kHang, cat("worker ", number_, " waited in vain for ", what.text(), " in ", task_text(command),
                                   ": no worker computed anything for ", store_.header().wait_timeout_ns / kNsPerSecond,
                                   " s; is another process stopped?"));
}

// Feeder

void Worker::feed() {
  std::uint64_t serial = 0;
  WaitRecord record = report_.waits(WorkerThread::kFeeder);
  while (true) {
    const auto task = free_tasks_.pop(record, {.kind = WaitKind::kNextTask});
    if (!task) return;
    while (!commands_.try_pop((*task)->command)) {
      record.publish_once({.kind = WaitKind::kNextTask});
      // A run may pause between two rounds for as long as the user's program likes.
      if (commands_.wait({&stop_, kNsPerSecond}) == WaitResult::kStopped) return;
    }
    record.publish_none();
    check_.command((*task)->command);
    (*task)->serial = ++serial;
    if (!feed_task(**task)) return;
  }
}

bool Worker::feed_task(RunningTask& task) {
  // Granted in slot order: this thread is the only one who asks.
  const auto buffer = free_stage_buffers_.pop(report_.waits(WorkerThread::kFeeder),
                                              {.kind = WaitKind::kOwnStageBuffer, .slot = slot_of(task.command)});
  if (!buffer) return false;
  task.stage_buffer = *buffer;
  task.gradient_buffer = nullptr;
  place_weights(task, store_.catalogue(), device_);
  to_fetch_.push(&task);
  to_run_.push(&task);
  return upload_weights(task);
}

bool Worker::upload_weights(RunningTask& task) {
  Stream& stream = device_.stream(StreamKind::kUploadParameters);
  const Catalogue& catalogue = store_.catalogue();
  const std::byte* last = nullptr;
  task.weights_known_ns = now_ns();
  for (const UseMemory& memory : task.uses) {
    if (last != nullptr && memory.weights <= last) continue;  // a tied block that is there already
    last = memory.weights;
    const std::uint32_t index = catalogue.uses()[memory.use].block;
    const BlockRecord& block = catalogue.blocks()[index];
    const std::uint64_t version = block.is_trained != 0 ? task.command.version : 0;
    const auto is_published = [&](const WaitLimits& limits) { return store_.published(index).wait_at_least(version, limits); };
    const Wait what{.kind = WaitKind::kWeights, .numbers = {static_cast<std::int64_t>(version), index}};
    const bool was_published = store_.published(index).observe() >= version;
    if (!wait(WorkerThread::kFeeder, task.command, what, is_published)) return false;
    if (!was_published) task.weights_known_ns = now_ns();
    check_.before_weights(task.command, memory.use, version);
    const auto room = [&](auto wait_once) { return wait(WorkerThread::kFeeder, task.command, {.kind = WaitKind::kOwnCopies}, wait_once); };
    const auto traced = [&](std::uint64_t bytes, auto enqueue) {
      auto* const copy = trace_.begin_copy(StreamKind::kUploadParameters);
      enqueue();
      trace_.weights(copy, task.command, catalogue.uses()[memory.use], version, bytes);
    };
    const std::byte* const from = store_.working_copy(index, version).data();
    if (!weight_copies_.copy(const_cast<std::byte*>(memory.weights), from, block.bytes(), room, traced)) return false;
    check_.after_weights(stream, task.command, memory.use, version, memory.weights);
  }
  if (!find_loss_scale(task)) return false;
  task.weights_enqueued_ns = now_ns();
  stream.signal_compute(weights_ready_, task.serial);
  return true;
}

// A task without trained weights has waited for nothing that would have told it.
bool Worker::find_loss_scale(RunningTask& task) {
  const Command& command = task.command;
  task.loss_scale = 1;
  if (command.phase == Phase::kForward || !command.has(Command::kScalesLoss)) return true;
  const LossScaleRecord& record = store_.loss_scale(command.pipeline);
  const auto is_known = [&](const WaitLimits& limits) { return record.version.wait_at_least(command.version, limits); };
  const Wait what{.kind = WaitKind::kLossScale, .numbers = {static_cast<std::int64_t>(command.version), command.pipeline}};
  if (!wait(WorkerThread::kFeeder, command, what, is_known)) return false;
  task.loss_scale = record.scales[command.version % LossScaleRecord::kNumScales];
  return true;
}

// Fetcher

void Worker::fetch() {
  std::uint64_t n = 0;
  while (const auto next = to_fetch_.pop(report_.waits(WorkerThread::kFetcher), {.kind = WaitKind::kNextTask})) {
    const Command command = (*next)->command;
    const std::vector<BlockRow> rows = input_rows(command, store_.catalogue());
    for (int microbatch = 0; microbatch < command.num_microbatches; ++microbatch, ++n) {
      if (!wait(WorkerThread::kFetcher, command, {.kind = WaitKind::kOwnInputBuffer},
                [&](const WaitLimits& limits) { return inputs_.wait_free(n, limits); })) {
        return;
      }
      inputs_.clear(n);
      for (const BlockRow& row : rows) {
        if (is_once_a_task(row.kind) && microbatch > 0) continue;
        if (row.kind == BlockKind::kGradient) inputs_.publish_recomputable(n, device_.stream(StreamKind::kUploadActivations));
        if (!fetch_block(command, row, microbatch, n)) return;
      }
      inputs_.publish_uploaded(n, device_.stream(StreamKind::kUploadActivations));
    }
  }
}

bool Worker::fetch_block(const Command& command, BlockRow row, int microbatch, std::uint64_t n) {
  const BlockRow wanted = row;
  RoundTable table = store_.round_table(command);
  if (const BlockOrigin& origin = table.origin(row.kind, row.index); origin.table_bytes > 0) {
    row = {origin.kind, origin.index};
    table = store_.round_table(origin);
  }
  const InputSource& source = table.source(row.kind, row.index);
  if (source.worker >= 0) {
    const std::uint64_t event = source.first_event + static_cast<std::uint64_t>(microbatch) + 1;
    const SequenceWord& events = store_.worker_words(static_cast<int>(source.worker)).events;
    const auto is_there = [&](const WaitLimits& limits) {
      return events.wait_at_least(in_epoch(epoch_of(command.slot), event), limits);
    };
    const Wait what{.kind = WaitKind::kInputs,
                    .numbers = {microbatch, static_cast<std::int64_t>(row.kind), row.index, source.worker}};
    if (!wait(WorkerThread::kFetcher, command, what, is_there)) return false;
  }
  const ConsistencyCheck::Input input{.table = &table, .row = row, .microbatch = microbatch};
  check_.before_input(command, input);
  const BlockPlace& place = table.place(row.kind, row.index, microbatch);
  if (place.bytes == 0) {  // the layer saved nothing
    RP_ASSERT(row.kind == BlockKind::kRecompute);
    return true;
  }
  Stream& stream = device_.stream(StreamKind::kUploadActivations);
  auto* const copy = trace_.begin_copy(StreamKind::kUploadActivations);
  const auto memory = inputs_.upload(n, wanted.kind, wanted.index, store_.block_data(place), place.bytes, stream);
  trace_.input(copy, command, wanted, row, microbatch, place);
  check_.after_input(stream, command, input, memory);
  return true;
}

// Runner

void Worker::run() {
  report_.idle();
  while (const auto task = to_run_.pop(report_.waits(WorkerThread::kRunner), {.kind = WaitKind::kNextTask})) {
    run_task(**task);
    if (!stop_.load(std::memory_order_relaxed)) report_.idle();  // else what it was doing stays for a dump
  }
}

void Worker::run_task(RunningTask& task) {
  if (halted_) return;
  report_.task(task.command, -1);
  task.completion = {.slot = task.command.slot};
  const auto are_ready = [&](const WaitLimits& limits) { return weights_ready_.wait_at_least(task.serial, limits); };
  if (!wait(WorkerThread::kRunner, task.command, {.kind = WaitKind::kOwnWeights}, are_ready)) return;
  if (task.command.phase != Phase::kForward && !take_gradient_buffer(task)) return;
  if (!run_microbatches(task)) return;
  trace_.task(task.command, task.completion.start_ns);
  free_stage_buffers_.push(task.stage_buffer);
  to_finish_.push(&task);
}

bool Worker::take_gradient_buffer(RunningTask& task) {
  const auto buffer = free_gradient_buffers_.pop(report_.waits(WorkerThread::kRunner),
                                                 {.kind = WaitKind::kOwnGradientBuffer, .slot = slot_of(task.command)});
  if (!buffer) return false;
  task.gradient_buffer = *buffer;
  place_gradients(task, accumulators_, store_.catalogue(), device_);
  return true;
}

template <typename WaitOnce>
bool Worker::wait_inputs(RunningTask& task, int microbatch, WaitOnce wait_once) {
  const std::int64_t wait_start = now_ns();
  if (!wait(WorkerThread::kRunner, task.command, {.kind = WaitKind::kOwnInputs, .numbers = {microbatch}}, wait_once)) return false;
  const std::int64_t end = now_ns();
  if (task.completion.start_ns == 0) {
    task.completion.start_ns = end;
  } else {
    task.completion.wait_ns += end - wait_start;
  }
  report_.task(task.command, microbatch);
  publish_heartbeat();
  return true;
}

bool Worker::run_microbatches(RunningTask& task) {
  const Command& command = task.command;
  int microbatch = -1;
  try {
    executor_.begin(task.stage_task());
    for (microbatch = 0; microbatch < command.num_microbatches; ++microbatch) {
      const std::uint64_t n = next_microbatch_;
      // The recompute does not wait for the gradient: it is done when that arrives.
      if (command.phase == Phase::kBackward) {
        if (!wait_inputs(task, microbatch, [&](const WaitLimits& limits) { return inputs_.wait_recomputable(n, limits); })) {
          return false;
        }
        const std::int64_t since = trace_.now();
        executor_.recompute(task.stage_task(), microbatch, inputs_.inputs(n));
        trace_.microbatch(TraceKind::kRecompute, command, microbatch, since);
      }
      if (!wait_inputs(task, microbatch, [&](const WaitLimits& limits) { return inputs_.wait_uploaded(n, limits); })) return false;
      const std::int64_t since = trace_.now();
      MicrobatchOutputs outputs;
      executor_.run(task.stage_task(), microbatch, inputs_.inputs(n), outputs);
      trace_.microbatch(TraceKind::kCompute, command, microbatch, since);
      inputs_.publish_computed(n);
      ++next_microbatch_;
      if (command.phase == Phase::kFused) store_.round_table(command).loss(microbatch) = outputs.losses;
      outputs_.write(command, microbatch, std::move(outputs));
    }
    task.completion.end_ns = now_ns();
    microbatch = -1;
    executor_.end(task.stage_task(), task.totals);
    task.completion.compute = task.totals.compute;
  } catch (const LayerFailure& failure) {
    fail_task(task, failure.layer(), microbatch, failure.what());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_task(task, FailureRecord::kElsewhere, microbatch, error.what());
  }
  return true;
}

void Worker::fail_task(RunningTask& task, std::int64_t layer, int microbatch, const std::string& message) {
  FailureRecord& record = store_.failure(number_);
  record.layer = layer;
  record.microbatch = microbatch;
  const std::size_t length = std::min(message.size(), record.message.size() - 1);
  std::memcpy(record.message.data(), message.data(), length);
  record.message[length] = '\0';
  task.completion.outcome = TaskOutcome::kFailed;
  halted_ = true;
}

// Finisher

void Worker::finish() {
  Stream& stream = device_.stream(StreamKind::kDownload);
  while (const auto next = to_finish_.pop(report_.waits(WorkerThread::kFinisher), {.kind = WaitKind::kNextTask})) {
    RunningTask& task = **next;
    if (task.completion.outcome == TaskOutcome::kDone) {
      const RoundTable table = store_.round_table(task.command);
      for (std::size_t i = 0; i < task.totals.layer_times.size(); ++i) {
        LayerTime& time = table.layer_time(task.command.first_layer + static_cast<int>(i));
        const LayerTime& measured = task.totals.layer_times[i];
        // A forward stage says nothing of the backward, and the other way round.
        if (task.command.phase != Phase::kBackward) time.forward_ns = measured.forward_ns;
        if (task.command.phase == Phase::kBackward) time.recompute_ns = measured.recompute_ns;
        if (task.command.phase != Phase::kForward) time.backward_ns = measured.backward_ns;
      }
      if (task.gradient_buffer != nullptr && !enqueue_gradients(task)) return;
    }
    stream.call(&Worker::complete, &task);
  }
}

bool Worker::enqueue_gradients(RunningTask& task) {
  Stream& stream = device_.stream(StreamKind::kDownload);
  const Catalogue& catalogue = store_.catalogue();
  // Deep layers first: their updates can start first.
  for (std::size_t i = task.uses.size(); i-- > 0;) {
    const UseMemory& memory = task.uses[i];
    if (memory.gradient == nullptr) continue;
    const UseRecord& use = catalogue.uses()[memory.use];
    const auto is_taken = [&](const WaitLimits& limits) {
      return store_.taken(memory.use).wait_at_least(task.command.taken_before, limits);
    };
    const Wait what{.kind = WaitKind::kGradientTaken,
                    .numbers = {memory.use, static_cast<std::int64_t>(task.command.taken_before)}};
    if (!wait(WorkerThread::kFinisher, task.command, what, is_taken)) return false;
    const auto room = [&](auto wait_once) { return wait(WorkerThread::kFinisher, task.command, {.kind = WaitKind::kOwnCopies}, wait_once); };
    const auto traced = [&](std::uint64_t piece_bytes, auto enqueue) {
      auto* const copy = trace_.begin_copy(StreamKind::kDownload);
      enqueue();
      trace_.gradient(copy, task.command, use, piece_bytes);
    };
    const std::uint64_t bytes = catalogue.blocks()[use.block].bytes();
    if (!gradient_copies_.copy(store_.gradients(use.gradient_offset), memory.gradient, bytes, room, traced)) return false;
    const RoundTable table = store_.round_table(task.command);
    table.square_sum(memory.use) = task.totals.square_sums[i];
    if (table.is_checked()) enqueue_checksum(stream, store_.gradient(memory.use), table.gradient_checksum(memory.use));
  }
  return true;
}

// Runs in the download stream, after everything that the task wrote.
void Worker::complete(void* argument) {
  auto& task = *static_cast<RunningTask*>(argument);
  Worker& worker = *task.worker;
  if (task.gradient_buffer != nullptr) worker.free_gradient_buffers_.push(task.gradient_buffer);
  RP_ASSERT(worker.completions_.try_push(task.completion));  // the coordinator runs ahead by less than the ring holds
  worker.free_tasks_.push(&task);
}

}  // namespace rp
