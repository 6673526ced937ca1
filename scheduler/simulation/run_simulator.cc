#include "scheduler/simulation/run_simulator.h"

#include <algorithm>
#include <deque>

#include "common/check.h"
#include "common/indexed.h"
#include "common/run_depth.h"
#include "common/run_order.h"
#include "scheduler/simulation/event_queue.h"
#include "scheduler/simulation/memory_account.h"
#include "scheduler/simulation/run_stages.h"
#include "scheduler/simulation/simulated_gpu.h"
#include "scheduler/simulation/simulated_links.h"
#include "scheduler/simulation/simulated_network.h"

namespace rp {

namespace {

// The update of a layer, or the addition of a round's gradient to those of the step's earlier
// rounds. On several nodes, both at the end of a step, of what this node owns.
struct Update {
  int layer = 0;
  std::int64_t slot = 0;  // that produced the gradient
};

// The weights of a layer in the host store.
struct Weights {
  int version = 0;                                   // number of steps whose update has finished, on all nodes
  int sent_version = 0, received_version = 0;        // the same for this node's part, and for those of the others
  std::int64_t rounds_added = 0;                     // number of rounds whose gradient is added, or used by the update
  std::int64_t rounds_sent = 0;                      // number of rounds whose gradient is sent to the other nodes
  double gradient_made = 0, gradient_committed = 0;  // of the last update
};

class RunSimulation {
 public:
  RunSimulation(const RunWork& work, const std::vector<StageWork>& stages, const RunLength& length)
      : work_(work),
        workload_(work.workload),
        stages_(run_stages(work, stages)),
        record_(length),
        memory_(work, stages_, length.record),
        num_stages_(static_cast<std::int64_t>(stages.size())),
        rounds_a_step_(workload_.num_microbatches / workload_.round_microbatches),
        num_slots_(num_stages_ * rounds_a_step_ * record_.num_steps()),
        links_(work.machine, work.policy, workload_.num_gpus),
        network_(work),
        gpus_(workload_.num_gpus),
        may_move_(gpus_.size(), true),
        outstanding_(gpus_.size()),
        made_(num_slots_ * workload_.round_microbatches),
        committed_(num_slots_),
        num_there_(num_slots_),
        num_left_(num_slots_),
        computed_of_step_(record_.num_steps()),
        weights_(static_cast<std::size_t>(workload_.num_layers()) + 1) {
    RP_ASSERT(rounds_a_step_ * workload_.round_microbatches == workload_.num_microbatches);
    RP_ASSERT(work.layers.empty() || work.layers.size() == weights_.size());
  }

  RunResult run() {
    while (num_committed_ < num_slots_) {
      while (move()) {}
      go_on();
    }
    for (const SimulatedGpu& gpu : gpus_) record_.idle_at_end(gpu.idle_since, now_);
    RunResult result = record_.result();
    result.gpu_memory = memory_.samples();
    return result;
  }

 private:
  [[nodiscard]] int gpu_of(std::int64_t slot) const {
    return worker_of_slot(static_cast<std::uint64_t>(slot), workload_.num_gpus);
  }
  [[nodiscard]] int stage_number(std::int64_t slot) const { return static_cast<int>(slot % num_stages_); }
  [[nodiscard]] const RunStage& stage(std::int64_t slot) const { return stages_[stage_number(slot)]; }
  [[nodiscard]] std::int64_t round_of(std::int64_t slot) const { return slot / num_stages_; }
  [[nodiscard]] int round_of_step(std::int64_t slot) const { return static_cast<int>(round_of(slot) % rounds_a_step_); }
  [[nodiscard]] int step_of(std::int64_t slot) const { return static_cast<int>(round_of(slot) / rounds_a_step_); }
  // The number of steps whose updates the weights of a slot include.
  [[nodiscard]] int version_of(std::int64_t slot) const {
    return static_cast<int>(steps_in_weights(static_cast<std::uint64_t>(step_of(slot)), work_.asynchronous));
  }
  // Returns true if number n gets one of so many buffers or places, `num_returned` of which were
  // returned so far.
  [[nodiscard]] static bool has_place(std::int64_t num_returned, std::int64_t n, int num_places) {
    return static_cast<std::uint64_t>(num_returned) >= returned_before(static_cast<std::uint64_t>(n), num_places);
  }
  [[nodiscard]] std::int64_t slot_of(int gpu, std::int64_t task) const { return task * workload_.num_gpus + gpu; }
  [[nodiscard]] LayerBytes bytes_of(int layer) const {
    return work_.layers.empty() ? LayerBytes{} : work_.layers[layer];
  }
  [[nodiscard]] double& made(std::int64_t slot, int microbatch) {
    return made_[slot * workload_.round_microbatches + microbatch];
  }
  [[nodiscard]] bool ends_step(std::int64_t slot) const { return (round_of(slot) + 1) % rounds_a_step_ == 0; }
  Weights& weights_of(int layer) { return weights_[layer]; }
  SimulatedGpu& at(int gpu) { return gpus_[gpu]; }
  // Starts everything that can start now. Returns true if something did.
  bool move() {
    bool moved = dispatch();
    for (int gpu = 0; gpu < workload_.num_gpus; ++gpu) {
      if (!may_move_[gpu]) continue;
      // The end of a task unblocks both uploaders. The input uploader has enqueued its copies
      // before the weight uploader has placed the next weights.
      bool has_moved = false;
      while (fetch(gpu)) has_moved = true;
      has_moved |= feed(gpu);
      has_moved |= compute(gpu);
      has_moved |= give_gradients(gpu);
      may_move_[gpu] = has_moved;
      moved |= has_moved;
    }
    return start_update() || moved;
  }

  // Something happened that this GPU (or any GPU) may have waited for. GPUs that were not woken
  // need not be checked again.
  void wake(int gpu) { may_move_[gpu] = true; }
  void wake_all() { std::fill(may_move_.begin(), may_move_.end(), true); }

  bool dispatch() {
    bool moved = false;
    while (num_dispatched_ < num_slots_ && may_begin_round(round_of(num_dispatched_) - round_of(num_committed_))) {
      int& outstanding = outstanding_[gpu_of(num_dispatched_)];
      if (!may_send_task(outstanding)) break;  // slots are dispatched in order, so later ones wait as well
      ++outstanding;
      wake(gpu_of(num_dispatched_));
      num_left_[num_dispatched_] =
          workload_.round_microbatches + static_cast<int>(stage(num_dispatched_).trained_layers.size());
      ++num_dispatched_;
      moved = true;
    }
    return moved;
  }

  bool feed(int gpu) {
    SimulatedGpu& state = at(gpu);
    const std::int64_t slot = slot_of(gpu, state.fed_task);
    if (slot >= num_dispatched_ || !has_place(state.task, state.fed_task, kStageBuffers)) return false;
    const LayerRange& layers = stage(slot).work.layers;
    bool moved = state.fed_layer < 0;
    if (state.fed_layer < 0) {
      state.fed_layer = layers.first;
      state.feeding = {};
    }
    for (; state.fed_layer < layers.end; ++state.fed_layer, moved = true) {
      const Weights& weights = weights_of(state.fed_layer);
      if (is_trained(work_, state.fed_layer) && weights.version < version_of(slot)) return moved;
      if (weights.gradient_committed > state.feeding.gradient_committed) {
        state.feeding.gradient_made = weights.gradient_made;
        state.feeding.gradient_committed = weights.gradient_committed;
      }
      const bool is_last = state.fed_layer + 1 == layers.end;
      links_.add(gpu, {.kind = CopyKind::kWeights,
                       .slot = slot,
                       .layer = state.fed_layer,
                       .is_last_part = is_last,
                       .bytes = bytes_of(state.fed_layer).weights});
    }
    state.feeding.weights_known = now_;
    state.fed.push_back(state.feeding);
    state.fed_layer = -1;
    ++state.fed_task;
    return true;
  }

  bool fetch(int gpu) {
    SimulatedGpu& state = at(gpu);
    const std::int64_t slot = slot_of(gpu, state.fetch_task);
    // The weight uploader passes a task on before it waits for weights.
    const bool is_fed =
        state.fetch_task < state.fed_task || (state.fetch_task == state.fed_task && state.fed_layer >= 0);
    if (!is_fed || !has_place(state.num_computed, state.num_fetched, kInputPlaces)) return false;
    const RunStage& what = stage(slot);
    const StageRead& read = what.reads[state.fetch_read];
    if (read.source != StageRead::kFromHost &&
        num_there_[slot - stage_number(slot) + read.source] <= state.fetch_microbatch) {
      return false;
    }
    const bool is_last = state.fetch_read + 1 == what.reads.size();
    links_.add(gpu, {.kind = CopyKind::kInput,
                     .slot = slot,
                     .microbatch = state.fetch_microbatch,
                     .read = state.fetch_read,
                     .is_last_part = is_last,
                     .bytes = read.bytes});
    state.fetch_read = is_last ? 0 : state.fetch_read + 1;
    if (!is_last) return true;
    ++state.num_fetched;
    if (++state.fetch_microbatch < workload_.round_microbatches) return true;
    state.fetch_microbatch = 0;
    ++state.fetch_task;
    return true;
  }

  bool compute(int gpu) {
    SimulatedGpu& state = at(gpu);
    const std::int64_t slot = slot_of(gpu, state.task);
    if (state.is_computing || slot >= num_dispatched_ || state.weights_there <= state.task) return false;
    const RunStage& what = stage(slot);
    if (!what.trained_layers.empty() && !state.has_gradient_buffer) {
      if (state.free_gradient_buffers == 0) return false;
      --state.free_gradient_buffers;
      state.has_gradient_buffer = true;
    }
    const bool recomputes = what.is_backward() && !state.has_recomputed;
    if ((recomputes ? state.recomputable : state.complete) <= state.num_computed) return false;
    const double ms =
        (recomputes ? what.work.time.lead : what.work.time.work + (what.is_backward() ? 0 : what.work.time.lead)) *
        workload_.slowness_of(gpu);
    record_.idle(state.idle_since, now_, state.missing);
    state.missing = {};
    state.is_computing = true;
    state.compute_start = now_;
    memory_.begin_compute(now_, gpu, stage_number(slot), recomputes, state.microbatch == 0);
    events_.add({.time = now_ + ms, .kind = TimedEvent::Kind::kComputed, .gpu = gpu});
    return true;
  }

  bool give_gradients(int gpu) {
    SimulatedGpu& state = at(gpu);
    bool moved = false;
    while (!state.gradients.empty()) {
      const LayerGradient& gradient = state.gradients.front();
      const Weights& weights = weights_of(gradient.layer);
      const bool is_sent = !network_.has_others() || weights.rounds_sent >= round_of(gradient.slot);
      if (!is_sent || weights.rounds_added < round_of(gradient.slot)) break;
      links_.add(gpu, {.kind = CopyKind::kGradient,
                       .slot = gradient.slot,
                       .layer = gradient.layer,
                       .is_last_part = gradient.is_last,
                       .bytes = bytes_of(gradient.layer).gradient});
      state.gradients.pop_front();
      moved = true;
    }
    return moved;
  }

  bool start_update() {
    if (links_.is_updating() || updates_.empty()) return false;
    const Update& update = updates_.front();
    links_.start_update(bytes_of(update));
    update_start_ = now_;
    return true;
  }

  [[nodiscard]] double bytes_of(const Update& update) const {
    return network_.update_bytes(update.layer, round_of_step(update.slot), ends_step(update.slot));
  }

  // Advances to the next time at which something ends.
  void go_on() {
    const double of_links = links_.next_event(now_);
    now_ = std::min({of_links, network_.next_event(), events_.next_time()});
    RP_ASSERT(now_ < kUnlimited);  // otherwise the run waits for itself
    for (const SimulatedLinks::End& end : links_.advance(now_)) end_copy(end);
    if (links_.update_has_ended()) end_update();
    for (const NetworkTransfer& transfer : network_.take_ended(now_)) end_transfer(transfer);
    while (events_.next_time() <= now_) {
      const TimedEvent event = events_.take();
      switch (event.kind) {
        case TimedEvent::Kind::kComputed: end_compute(event.gpu); break;
        case TimedEvent::Kind::kCopied: arrive(event.gpu, event.copy); break;
        case TimedEvent::Kind::kMoved: arrive(event.transfer); break;
      }
    }
  }

  [[nodiscard]] RunSpan span_of(std::int64_t slot, SpanKind kind, int microbatch, double start) const {
    return {.kind = kind,
            .phase = stage(slot).work.kind,
            .gpu = gpu_of(slot),
            .step = step_of(slot),
            .stage = stage_number(slot),
            .microbatch = microbatch < 0 ? -1 : round_of_step(slot) * workload_.round_microbatches + microbatch,
            .start = start,
            .end = now_};
  }

  void end_copy(const SimulatedLinks::End& end) {
    static constexpr IndexedArray<CopyKind, SpanKind, kNumCopyKinds> kKinds = {
        SpanKind::kUploadInput, SpanKind::kUploadWeights, SpanKind::kDownloadOutput, SpanKind::kDownloadGradient};
    const SimulatedCopy& copy = end.copy.copy;
    RunSpan span = span_of(copy.slot, kKinds[copy.kind], copy.microbatch, end.copy.start);
    span.layer = copy.layer;
    span.bytes = end.copy.bytes;
    record_.span(span);
    memory_.end_copy(now_, end, stage_number(copy.slot));
    if (!end.copy.has_ended) return;
    events_.add(
        {.time = now_ + work_.machine.copy_latency, .kind = TimedEvent::Kind::kCopied, .gpu = end.gpu, .copy = copy});
  }

  void end_compute(int gpu) {
    wake(gpu);
    SimulatedGpu& state = at(gpu);
    const std::int64_t slot = slot_of(gpu, state.task);
    const RunStage& what = stage(slot);
    const bool is_recompute = what.is_backward() && !state.has_recomputed;
    state.is_computing = false;
    state.idle_since = now_;
    state.has_recomputed = is_recompute;
    record_.busy(state.compute_start, now_);
    record_.span(
        span_of(slot, is_recompute ? SpanKind::kRecompute : SpanKind::kCompute, state.microbatch, state.compute_start));
    memory_.end_compute(now_, gpu, stage_number(slot), is_recompute,
                        state.microbatch + 1 == workload_.round_microbatches);
    if (is_recompute) return;
    made(slot, state.microbatch) = now_;
    record_.activations(now_, what.output_bytes);
    links_.add(gpu,
               {.kind = CopyKind::kOutput, .slot = slot, .microbatch = state.microbatch, .bytes = what.output_bytes});
    ++state.num_computed;
    if (++state.microbatch < workload_.round_microbatches) return;
    state.microbatch = 0;
    state.has_gradient_buffer = false;
    ++state.task;
    for (const int layer : what.trained_layers) {
      state.gradients.push_back({.slot = slot, .layer = layer, .is_last = layer == what.trained_layers.back()});
    }
    if (++computed_of_step_[step_of(slot)] == num_stages_ * rounds_a_step_) record_.end_step(now_);
  }

  // Handles the arrival of a copy: the threads that wait for it can continue.
  void arrive(int gpu, const SimulatedCopy& copy) {
    wake(gpu);
    SimulatedGpu& state = at(gpu);
    const RunStage& what = stage(copy.slot);
    if (copy.kind == CopyKind::kInput) {
      const int source = what.reads[copy.read].source;
      if (copy.read + 1 == what.num_inputs()) ++state.recomputable;
      if (copy.is_last_part) ++state.complete;
      state.missing.input_there = now_;
      state.missing.input_made =
          source == StageRead::kFromHost ? 0 : made(copy.slot - stage_number(copy.slot) + source, copy.microbatch);
    } else if (copy.kind == CopyKind::kWeights) {
      if (!copy.is_last_part) return;
      // The stage runner does not wait for weights of a later task.
      if (state.weights_there == state.task) {
        const Missing other = state.missing;
        state.missing = state.fed.front();
        state.missing.weights_there = now_;
        state.missing.input_made = other.input_made;
        state.missing.input_there = other.input_there;
        state.missing.gradient_buffer = other.gradient_buffer;
      }
      state.fed.pop_front();
      ++state.weights_there;
    } else {
      if (copy.kind == CopyKind::kOutput) {
        num_there_[copy.slot] = copy.microbatch + 1;
        wake_all();
      }
      if (copy.kind == CopyKind::kGradient && copy.is_last_part) {
        if (++state.free_gradient_buffers == 1) state.missing.gradient_buffer = now_;
      }
      --num_left_[copy.slot];
      while (num_committed_ < num_dispatched_ && num_left_[num_committed_] == 0) commit(num_committed_++);
    }
  }

  void commit(std::int64_t slot) {
    --outstanding_[gpu_of(slot)];
    committed_[slot] = now_;
    record_.activations(now_, -stage(slot).freed_bytes);
    for (const int layer : stage(slot).trained_layers) {
      if (network_.has_others()) {
        network_.send_gradient(now_, slot, layer, round_of_step(slot));
      } else {
        updates_.push_back({.layer = layer, .slot = slot});
      }
    }
  }

  void end_update() {
    wake_all();
    const Update update = updates_.front();
    updates_.pop_front();
    weights_of(update.layer).rounds_added = round_of(update.slot) + 1;
    record_.update(update_start_, now_);
    RunSpan span = span_of(update.slot, SpanKind::kUpdate, -1, update_start_);
    span.gpu = -1;
    span.layer = update.layer;
    span.bytes = bytes_of(update);
    record_.span(span);
    if (!ends_step(update.slot)) return;
    if (network_.has_others()) {
      network_.send_weights(now_, update.slot, update.layer, step_of(update.slot));
    } else {
      publish(update.layer, update.slot);
    }
  }

  // All parts of a layer's new weights are in the host store.
  void publish(int layer, std::int64_t slot) {
    wake_all();
    Weights& weights = weights_of(layer);
    weights.version = step_of(slot) + 1;
    weights.gradient_made = made(slot, workload_.round_microbatches - 1);
    weights.gradient_committed = committed_[slot];
  }

  void end_transfer(const NetworkTransfer& transfer) {
    RunSpan span = span_of(transfer.slot, transfer.kind, -1, transfer.start);
    span.gpu = -1;
    span.layer = transfer.layer;
    span.bytes = transfer.bytes;
    span.end = transfer.end;
    record_.span(span);
    if (!transfer.is_last) return;
    events_.add({.time = now_ + work_.nodes.network_latency, .kind = TimedEvent::Kind::kMoved, .transfer = transfer});
  }

  // Handles that what was sent may be overwritten, or that what was received is there.
  void arrive(const NetworkTransfer& transfer) {
    if (transfer.kind == SpanKind::kSendGradient) {
      weights_of(transfer.layer).rounds_sent = round_of(transfer.slot) + 1;
      wake_all();
    } else if (transfer.kind == SpanKind::kReceiveGradient) {
      updates_.push_back({.layer = transfer.layer, .slot = transfer.slot});
    } else {
      Weights& weights = weights_of(transfer.layer);
      int& step = transfer.kind == SpanKind::kSendWeights ? weights.sent_version : weights.received_version;
      step = step_of(transfer.slot) + 1;
      // Without the part of this node, no other one goes on, and so this one would soon wait for them.
      if (step == std::min(weights.sent_version, weights.received_version)) publish(transfer.layer, transfer.slot);
    }
  }

  const RunWork& work_;
  const Workload& workload_;
  const std::vector<RunStage> stages_;
  RunRecord record_;
  MemoryAccount memory_;
  const std::int64_t num_stages_;
  const std::int64_t rounds_a_step_;
  const std::int64_t num_slots_;
  SimulatedLinks links_;
  SimulatedNetwork network_;
  std::vector<SimulatedGpu> gpus_;
  std::vector<char> may_move_;  // by GPU: false if it could do nothing and nothing has happened since
  EventQueue events_;
  double now_ = 0;
  double update_start_ = 0;
  std::deque<Update> updates_;
  // Slots.
  std::int64_t num_dispatched_ = 0;
  std::int64_t num_committed_ = 0;
  std::vector<int> outstanding_;                // by GPU: slots dispatched and not committed
  std::vector<double> made_;                    // by slot and microbatch: the time at which it was computed
  std::vector<double> committed_;               // by slot: the time of its commit
  std::vector<int> num_there_;                  // by slot: number of microbatches whose outputs are in the store
  std::vector<int> num_left_;                   // by slot: number of downloads that have not arrived
  std::vector<std::int64_t> computed_of_step_;  // by step: number of slots computed
  std::vector<Weights> weights_;                // by layer
};

}  // namespace

RunResult simulate_run(const RunWork& work, const std::vector<StageWork>& stages, const RunLength& length) {
  return RunSimulation(work, stages, length).run();
}

}  // namespace rp
