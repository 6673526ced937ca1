#include "coordinator/coordinator.h"

#include <pthread.h>

#include <algorithm>

#include "common/check.h"
#include "common/text.h"
#include "coordinator/commit_check.h"
#include "coordinator/weight_stamps.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr int kTasksAhead = 2;  // behind the one that runs
static_assert(kTasksAhead + 1 < static_cast<int>(kCommandRing) && kTasksAhead + 1 < static_cast<int>(kCompletionRing));

std::vector<PlanSettings> plan_settings(const CoordinatorOptions& options) {
  std::vector<PlanSettings> settings;
  for (const PipelineSettings& pipeline : options.pipelines) settings.push_back(pipeline.plan);
  return settings;
}

Wait wait_for_round(WaitKind kind, const Round& round) {
  Wait wait{.kind = kind, .numbers = {static_cast<std::int64_t>(round.number), round.traits.pipeline}};
  for (const Slot& slot : round.slots) {  // the last one that it needs
    if (kind == WaitKind::kRoundEnd || slot.phase != Phase::kBackward) wait.slot = static_cast<std::int64_t>(slot.number);
  }
  return wait;
}

}  // namespace

Coordinator::Coordinator(Store& store, CoordinatorOptions options)
    : store_(store),
      options_(std::move(options)),
      inputs_(store),
      user_waits_(RunReport::waits(options_.board, CoordinatorThread::kUser)),
      commit_waits_(RunReport::waits(options_.board, CoordinatorThread::kCommit)),
      plans_(store.catalogue(), plan_settings(options_)),
      outstanding_(static_cast<std::size_t>(store.num_workers())),
      next_event_(static_cast<std::size_t>(store.num_workers())),
      blocks_(store, inputs_),
      report_(options_.board) {
  const Catalogue& catalogue = store.catalogue();
  RP_ASSERT(options_.pipelines.size() == catalogue.pipelines().size());
  for (std::uint32_t number = 0; number < options_.pipelines.size(); ++number) {
    const PipelineSettings& settings = options_.pipelines[number];
    const PipelineRecord& record = catalogue.pipelines()[number];
    const int num_layers = static_cast<int>(record.num_layers);
    auto state = std::make_unique<PipelineState>();
    state->number = static_cast<int>(number);
    state->settings = settings;
    state->activation_budget = ActivationBudget(store.num_workers());
    while (state->first_trained_layer < num_layers &&
           !catalogue.is_trained(static_cast<int>(record.first_layer) + state->first_trained_layer)) {
      ++state->first_trained_layer;
    }
    const bool is_trained = state->first_trained_layer < num_layers;  // else its updates have nothing to do
    state->updates = std::make_unique<Updates>(
        store, number, UpdatesOptions{.num_threads = is_trained ? options_.optimizer_threads : 1,
                                      .adds_rounds = settings.adds_rounds,
                                      .loss_scaling = settings.loss_scaling,
                                      .report_failure = [this](std::exception_ptr error) { fail(std::move(error)); },
                                      .waits = RunReport::waits(options_.board, CoordinatorThread::kUpdates, state->number)});
    pipelines_.push_back(std::move(state));
  }
  for (int worker = 0; worker < store.num_workers(); ++worker) {
    commands_.push_back(store.command_writer(worker));
    completions_.push_back(store.completion_reader(worker));
  }
  thread_ = std::thread([this] { follow_completions(); });
}

Coordinator::~Coordinator() {
  fail(std::make_exception_ptr(Error(ExitCode::kUserError, "the session has ended")));
  stop_.store(true, std::memory_order_release);
  for (const RingReader<Completion>& ring : completions_) ring.wake();
  thread_.join();
  store_.epoch().publish(kEndEpoch);
}

void Coordinator::set_buffers(int pipeline, const std::map<int, BlockContents>& buffers) {
  if (buffers.empty()) return;
  auto round = std::make_shared<Round>();
  round->traits.pipeline = pipeline;
  round->num_layers = static_cast<int>(store_.catalogue().pipelines()[static_cast<std::size_t>(pipeline)].num_layers);
  round->forward_done = round->all_done = true;
  const RoundShape shape = shape_of(*round);
  round->table_bytes = RoundTable::bytes(shape);
  round->table = inputs_.place_table(shape);
  for (const auto& [layer, contents] : buffers) inputs_.place(contents, table_of(*round), BlockKind::kBuffers, layer, 0);
  MutexLock lock(mutex_);
  PipelineState& state = at(pipeline);
  for (const auto& [layer, contents] : buffers) {
    const BlockRow row{BlockKind::kBuffers, layer};
    for (auto* kept : {&state.buffers, &state.buffers_of_step}) {
      RoundBlocks::keep({round, row});
      if (const auto old = kept->find(layer); old != kept->end()) blocks_.release(old->second);
      (*kept)[layer] = {round, row};
    }
  }
}

std::map<int, BlockOfRound> Coordinator::buffers(int pipeline, BuffersOf which) {
  MutexLock lock(mutex_);
  return which == BuffersOf::kLastRound ? at(pipeline).buffers : at(pipeline).buffers_of_step;
}

void Coordinator::restart_at(int pipeline, std::uint64_t steps, std::uint64_t rounds, const UpdateHistory& history) {
  PipelineState& state = at(pipeline);
  RP_ASSERT(state.rounds_since_step == 0);
  const std::uint64_t next = state.version() + 2;  // an asynchronous step computes with the version before, too
  state.num_steps = steps;
  state.num_rounds = state.num_rounds_of_steps = rounds;
  state.version_offset = next - steps;
  state.is_stamped = false;
  state.updates->restart_at(next, history);
}

void Coordinator::fail(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
    changed_.notify_all();
  }
  store_.failed().publish(1);
  for (const auto& pipeline : pipelines_) pipeline->updates->stop(error);
}

void Coordinator::check_failure() {
  if (!error_) return;
  error_is_known_ = true;
  std::rethrow_exception(error_);
}

void Coordinator::sleep(WaitRecord& record, const Wait& wait) {
  record.publish_once(wait);
  changed_.wait(mutex_);
}

// Accepting

RoundShape Coordinator::shape_of(const Round& round) const {
  return {.num_layers = static_cast<std::uint32_t>(round.num_layers),
          .num_microbatches = static_cast<std::uint32_t>(round.traits.num_microbatches),
          .num_uses = static_cast<std::uint32_t>(store_.catalogue().uses().size()),
          .is_checked = store_.header().checks_consistency};
}

RoundTable Coordinator::table_of(const Round& round) { return store_.round_table(round); }

void Coordinator::wait_for_flight(PipelineState& pipeline) {
  MutexLock lock(mutex_);
  const auto number = static_cast<std::int64_t>(pipeline.number);
  while (!error_ && pipeline.num_in_flight >= kRoundsInFlight) {
    sleep(user_waits_, {.kind = WaitKind::kRoundPlace, .numbers = {number}});
  }
  check_failure();
  user_waits_.publish_none();
}

std::shared_ptr<Round> Coordinator::new_round(const RoundTraits& traits, const RoundInputs& inputs, const Plan* plan) {
  PipelineState& state = at(traits.pipeline);
  const PipelineRecord& record = store_.catalogue().pipelines()[static_cast<std::size_t>(traits.pipeline)];
  auto round = std::make_shared<Round>();
  round->traits = traits;
  round->first_layer = static_cast<int>(record.first_layer);
  round->num_layers = static_cast<int>(record.num_layers);
  round->first_trained_layer = traits.input_gradient ? 0 : state.first_trained_layer;
  round->num_input_imports = static_cast<int>(inputs.input_imports.size());
  round->num_argument_imports = static_cast<int>(inputs.argument_imports.size());
  // Evaluations have numbers of their own: they change nothing in what is trained afterwards.
  constexpr std::uint64_t kEvaluation = std::uint64_t{1} << 48;
  round->number = traits.mode == RoundMode::kTrain ? state.num_rounds : (kEvaluation | state.num_evaluations);
  round->step = state.num_steps + 1;
  const bool newest = !state.settings.asynchronous || (traits.mode == RoundMode::kEvaluate && state.evaluates_newest);
  round->version = state.used_version(newest);
  round->traits.scales_loss = state.settings.loss_scaling.has_value();
  round->next_version = state.version() + 1;
  round->attempt = state.num_attempts;
  round->graph_is_open = traits.keeps_graph;
  MutexLock lock(mutex_);
  const PlanKind kind = traits.kind == RoundKind::kForwardBackward ? PlanKind::kFused
                        : traits.keeps_graph                       ? PlanKind::kTrain
                                                                   : PlanKind::kInfer;
  round->plan = plan != nullptr ? plan_for(kind, *plan, round->num_layers) : plans_.plan(traits.pipeline, kind);
  round->slots = slots_of(round->plan, round->num_layers, round->first_trained_layer);
  return round;
}

void Coordinator::place_inputs(Round& round, const RoundInputs& inputs) {
  const RoundShape shape = shape_of(round);
  round.table_bytes = RoundTable::bytes(shape);
  std::vector<std::uint64_t> placed = {inputs_.place_table(shape)};
  round.table = placed.front();
  const RoundTable table = table_of(round);
  const auto place_all = [&](BlockKind kind, const std::vector<BlockContents>& blocks) {
    for (std::size_t m = 0; m < blocks.size(); ++m) {
      inputs_.place(blocks[m], table, kind, 0, static_cast<int>(m));
      placed.push_back(table.place(kind, 0, static_cast<int>(m)).offset);
    }
  };
  try {
    place_all(BlockKind::kActivation, inputs.inputs);
    // Without a loss nobody would read them.
    if (round.traits.kind == RoundKind::kForwardBackward) place_all(BlockKind::kArguments, inputs.arguments);
  } catch (...) {
    for (const std::uint64_t offset : placed) inputs_.free(offset);
    throw;
  }
}

std::shared_ptr<Round> Coordinator::accept_round(const RoundTraits& traits, const RoundInputs& inputs, const Plan* plan) {
  PipelineState& state = at(traits.pipeline);
  RP_ASSERT(inputs.inputs.size() == static_cast<std::size_t>(traits.num_microbatches));
  wait_for_flight(state);
  if (!state.is_stamped) WeightStamps(store_).stamp_all(static_cast<std::uint32_t>(traits.pipeline), state.version());
  state.is_stamped = true;
  const std::shared_ptr<Round> round = new_round(traits, inputs, plan);
  place_inputs(*round, inputs);
  if (traits.mode == RoundMode::kTrain) {
    ++state.num_rounds;
  } else {
    ++state.num_evaluations;
  }
  if (traits.kind == RoundKind::kForwardBackward) {
    ++state.num_attempts;
    ++state.rounds_since_step;
  }
  MutexLock lock(mutex_);
  check_failure();
  RoundBlocks::import(*round, inputs.input_imports, inputs.argument_imports);
  const std::vector<BlockOfRound> old_buffers = RoundBlocks::take_over_buffers(round, state.buffers);
  blocks_.add_readers(*round);
  for (const BlockOfRound& old : old_buffers) blocks_.release(old);
  const auto is_first = [](const Slot& slot) { return slot.phase != Phase::kBackward; };
  const auto end = traits.kind == RoundKind::kForwardBackward ? round->slots.end()
                                                              : std::find_if_not(round->slots.begin(), round->slots.end(), is_first);
  launch(round, 0, static_cast<std::size_t>(end - round->slots.begin()));
  return round;
}

void Coordinator::launch(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot) {
  PipelineState& state = at(round->traits.pipeline);
  for (std::size_t i = first_slot; i < end_slot; ++i) {
    round->slots[i].number = next_slot_++;
    for_trained_uses(*round, round->slots[i].layers,
                     [&](std::uint32_t use) { state.updates->task_accepted(round->next_version, use); });
  }
  flights_.push_back({round, first_slot, end_slot});
  ++state.num_in_flight;
  dispatch();
  report_.round(*round);
  report_.slots(next_slot_, next_dispatch_, commit_point_);
  changed_.notify_all();
}

void Coordinator::accept_backward(const std::shared_ptr<Round>& round, const std::vector<BlockContents>& gradients) {
  PipelineState& state = at(round->traits.pipeline);
  RP_ASSERT(gradients.size() == static_cast<std::size_t>(round->traits.num_microbatches));
  wait_for_flight(state);
  const RoundTable table = table_of(*round);
  for (std::size_t m = 0; m < gradients.size(); ++m) {
    inputs_.place(gradients[m], table, BlockKind::kGradient, round->num_layers, static_cast<int>(m));
  }
  MutexLock lock(mutex_);
  check_failure();
  RP_ASSERT(round->graph_is_open);
  round->graph_is_open = false;
  round->attempt = state.num_attempts++;
  ++state.rounds_since_step;
  const auto first = std::find_if(round->slots.begin(), round->slots.end(),
                                  [](const Slot& slot) { return slot.phase == Phase::kBackward; });
  RP_ASSERT(first != round->slots.end());
  launch(round, static_cast<std::size_t>(first - round->slots.begin()), round->slots.size());
}

void Coordinator::drop_graph(const std::shared_ptr<Round>& round) {
  MutexLock lock(mutex_);
  if (!round->graph_is_open) return;
  round->graph_is_open = false;
  std::vector<Command> dropped;
  while (!round->slots.empty() && round->slots.back().phase == Phase::kBackward) {
    dropped.push_back(command_of(*round, round->slots.back()));
    round->slots.pop_back();
  }
  blocks_.drop(round, dropped);
  // Nobody will make what the caller was to have of the backward.
  if (round->traits.input_gradient) blocks_.release({round, {BlockKind::kGradient, 0}});
  if (round->num_committed == round->slots.size()) end_round(*round);
}

void Coordinator::drop(const BlockOfRound& block) {
  MutexLock lock(mutex_);
  blocks_.release(block);
}

std::shared_ptr<StepOutcome> Coordinator::accept_step(int pipeline, StepRequest request) {
  PipelineState& state = at(pipeline);
  RP_ASSERT(state.rounds_since_step > 0);
  {
    MutexLock lock(mutex_);
    check_failure();
    for (const auto& [layer, newest] : state.buffers) {
      RoundBlocks::keep(newest);
      BlockOfRound& kept = state.buffers_of_step.at(layer);
      blocks_.release(kept);
      kept = newest;
    }
  }
  const std::uint64_t used_version = state.used_version(!state.settings.asynchronous);
  state.num_rounds_of_steps = state.num_rounds;
  state.rounds_since_step = 0;
  state.evaluates_newest = false;
  ++state.num_steps;
  return state.updates->accept_step(state.version(), used_version, std::move(request));
}

template <typename Do>
void Coordinator::for_trained_uses(const Round& round, const LayerRange& layers, Do&& action) {
  const Catalogue& catalogue = store_.catalogue();
  for (int layer = layers.end; layer-- > layers.first;) {
    for (const std::uint32_t use : catalogue.uses_of(round.first_layer + layer)) {
      if (catalogue.blocks()[catalogue.uses()[use].block].is_trained != 0) action(use);
    }
  }
}

// Dispatch

void Coordinator::dispatch() {
  for (const Flight& flight : flights_) {
    for (std::size_t i = flight.first_slot; i < flight.end_slot; ++i) {
      Slot& slot = flight.round->slots[i];
      if (slot.number < next_dispatch_) continue;
      const auto worker = static_cast<std::size_t>(slot.number % commands_.size());
      if (outstanding_[worker] > kTasksAhead) return;  // in slot order: later slots wait as well
      const auto num_microbatches = static_cast<std::uint64_t>(flight.round->traits.num_microbatches);
      slot.worker = static_cast<int>(worker);
      slot.first_event = next_event_[worker];
      next_event_[worker] += num_microbatches;
      ++outstanding_[worker];
      ++next_dispatch_;
      Command command = command_of(*flight.round, slot);
      command.slot = in_epoch(store_.epoch().observe(), slot.number);
      command.first_event = slot.first_event;
      const RoundTable table = table_of(*flight.round);
      for (const BlockRow& row : output_rows(command, store_.catalogue())) {
        table.source(row.kind, row.index) = {
            .worker = slot.worker, .first_event = slot.first_event + (is_once_a_task(row.kind) ? num_microbatches - 1 : 0)};
      }
      RP_ASSERT(commands_[worker].try_push(command));
    }
  }
}

// Commit

void Coordinator::follow_completions() {
  pthread_setname_np(pthread_self(), "rp-commit");
  try {
    while (true) {
      int worker = 0;
      {
        MutexLock lock(mutex_);
        while (!error_ && commit_point_ >= next_dispatch_) sleep(commit_waits_, {.kind = WaitKind::kNextSlot});
        if (error_) return;
        commit_waits_.publish_none();
        worker = static_cast<int>(commit_point_ % commands_.size());
      }
      Completion completion;
      if (!next_completion(worker, completion)) return;
      std::exception_ptr error;
      {
        MutexLock lock(mutex_);
        if (error_) return;
        commit(completion);
        error = error_;
      }
      if (error) {
        fail(error);  // whoever waits for an update hears of it too
        return;
      }
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

// Waits for the worker's next completion: the one of the commit point, since a worker keeps slot order.
bool Coordinator::next_completion(int worker, Completion& completion) {
  RingReader<Completion>& ring = completions_[static_cast<std::size_t>(worker)];
  std::uint64_t progress = store_.progress();
  std::int64_t silent_ns = 0;  // counted in waits and not on the clock: a pause of the whole run is none
  while (!ring.try_pop(completion)) {
    std::int64_t wait_ns = 100 * kNsPerMs;
    {
      MutexLock lock(mutex_);
      if (error_) return false;
      const auto slot = static_cast<std::int64_t>(commit_point_);
      commit_waits_.publish_once({.kind = WaitKind::kCompletion, .slot = slot, .numbers = {worker}});
      if (!blocks_.flush_frees()) wait_ns = kNsPerMs;
    }
    if (ring.wait({&stop_, wait_ns}) == WaitResult::kStopped) return false;
    silent_ns = store_.progress() == progress ? silent_ns + wait_ns : 0;
    progress = store_.progress();
    if (silent_ns > store_.header().wait_timeout_ns) {
      if (options_.on_hang) options_.on_hang();
      throw Error(ExitCode::kHang, cat("worker ", worker, " does not complete its task, and no worker computed anything for ",
                                       store_.header().wait_timeout_ns / kNsPerSecond, " s; is it stopped?"));
    }
  }
  commit_waits_.publish_none();
  return true;
}

void Coordinator::commit(const Completion& completion) {
  const Flight flight = flights_.front();
  Round& round = *flight.round;
  const Slot& slot = round.slots[flight.first_slot + (commit_point_ - round.slots[flight.first_slot].number)];
  RP_ASSERT(completion.slot == in_epoch(store_.epoch().observe(), slot.number));
  if (completion.outcome == TaskOutcome::kFailed) {
    commit_failure(round, slot);
    return;
  }
  check_weights_seen(store_, round, slot);
  --outstanding_[static_cast<std::size_t>(slot.worker)];
  ++commit_point_;
  ++round.num_committed;
  if (slot.phase == Phase::kFused) commit_losses(round);
  if (slot.layers.end == round.num_layers && slot.phase != Phase::kBackward) round.forward_done = true;
  blocks_.commit(flight.round, command_of(round, slot));
  commit_gradients(round, slot);
  if (commit_point_ == round.slots[flight.end_slot - 1].number + 1) {
    flights_.pop_front();
    --at(round.traits.pipeline).num_in_flight;
    if (round.num_committed == round.slots.size()) end_round(round);
  }
  dispatch();
  report_.slots(next_slot_, next_dispatch_, commit_point_);
  changed_.notify_all();
}

void Coordinator::commit_losses(Round& round) {
  const RoundTable table = table_of(round);
  round.losses.assign(table.loss(0).num, 0);
  for (int m = 0; m < round.traits.num_microbatches; ++m) {
    for (std::size_t i = 0; i < round.losses.size(); ++i) round.losses[i] += table.loss(m).values[i];
  }
}

void Coordinator::commit_failure(const Round& round, const Slot& slot) {
  const FailureRecord& record = store_.failure(slot.worker);
  TaskPlace place{.worker = slot.worker,
                  .round = static_cast<std::int64_t>(round.number),
                  .step = static_cast<std::int64_t>(round.step),
                  .first_layer = slot.layers.first,
                  .end_layer = slot.layers.end,
                  .layer = record.layer,
                  .microbatch = record.microbatch};
  const std::string microbatch = record.microbatch >= 0 ? cat(", microbatch ", record.microbatch) : "";
  const std::string where = cat(" in the ", phase_name(slot.phase), " stage of layers ", slot.layers.first, "-",
                                slot.layers.end - 1, microbatch, ", step ", round.step, ", on worker ", slot.worker);
  std::string who = "the task";
  if (record.layer >= 0) {
    who = cat("layer ", record.layer, " (", store_.catalogue().layer(round.first_layer + static_cast<int>(record.layer)).name.data(), ")");
  } else if (record.layer == FailureRecord::kLoss) {
    who = "the loss";
  }
  error_ = std::make_exception_ptr(WorkerError(cat(who, " failed", where, ": ", record.message.data()), place));
  changed_.notify_all();
}

void Coordinator::commit_gradients(const Round& round, const Slot& slot) {
  Updates& updates = *at(round.traits.pipeline).updates;
  for_trained_uses(round, slot.layers, [&](std::uint32_t use) {
    if (slot.phase == Phase::kForward) {
      updates.task_committed(round.next_version, use);
    } else {
      const RoundTable table = table_of(round);
      updates.gradient_committed(round.next_version, use, round.attempt + 1, table.square_sum(use),
                                 table.is_checked() ? table.gradient_checksum(use) : 0);
    }
  });
}

// The round's last slot is committed, or its graph dropped.
void Coordinator::end_round(Round& round) {
  if (round.graph_is_open) return;
  round.all_done = true;
  learn_memory(at(round.traits.pipeline), round);
  const bool went_back = !round.slots.empty() && round.slots.back().phase == Phase::kBackward;
  const PlanKind kind = round.traits.kind == RoundKind::kForwardBackward ? PlanKind::kFused
                        : went_back                                      ? PlanKind::kTrain
                                                                         : PlanKind::kInfer;
  plans_.learn(round.traits.pipeline, kind, table_of(round));
  blocks_.end(round);
}

void Coordinator::learn_memory(PipelineState& pipeline, const Round& round) {
  if (round.slots.empty()) return;
  const bool next_needs_step = round.traits.has_backward() && pipeline.first_trained_layer == 0 && !pipeline.settings.asynchronous &&
                               !pipeline.settings.adds_rounds;
  RoundMemory memory = memory_of(round, table_of(round), store_.catalogue(), !next_needs_step);
  if (memory == pipeline.last_memory) return;
  pipeline.activation_budget.learn(memory);
  pipeline.last_memory = std::move(memory);
}

// Waiting

void Coordinator::wait_forward(const Round& round) {
  MutexLock lock(mutex_);
  while (!round.forward_done && !error_) sleep(user_waits_, wait_for_round(WaitKind::kOutputs, round));
  if (!round.forward_done) check_failure();
  user_waits_.publish_none();
}

void Coordinator::wait_all(const Round& round) {
  MutexLock lock(mutex_);
  while (!round.all_done && !error_) sleep(user_waits_, wait_for_round(WaitKind::kRoundEnd, round));
  if (!round.all_done) check_failure();
  user_waits_.publish_none();
}

const std::byte* Coordinator::block(const Round& round, BlockRow row, int microbatch, std::uint64_t& bytes) {
  const RoundTable table = table_of(round);
  check_kept_block(store_, table, row, microbatch);
  const BlockPlace& place = table.place(row.kind, row.index, microbatch);
  bytes = place.bytes;
  return store_.block_data(place);
}

template <typename Do>
void Coordinator::wait_for_updates(const Wait& what, Do wait) {
  user_waits_.publish(what);
  try {
    wait();
    user_waits_.publish_none();
  } catch (...) {
    MutexLock lock(mutex_);
    error_is_known_ = true;
    throw;
  }
}

void Coordinator::wait_step(int pipeline) {
  const Wait what{.kind = WaitKind::kUpdates, .numbers = {static_cast<std::int64_t>(at(pipeline).version()), pipeline}};
  wait_for_updates(what, [&] { at(pipeline).updates->wait_applied(at(pipeline).version()); });
}

void Coordinator::synchronize() {
  {
    MutexLock lock(mutex_);
    while (!flights_.empty() && !error_) sleep(user_waits_, {.kind = WaitKind::kCommits});
    check_failure();
    user_waits_.publish_none();
  }
  for (int pipeline = 0; pipeline < static_cast<int>(pipelines_.size()); ++pipeline) {
    wait_step(pipeline);
    at(pipeline).is_stamped = false;  // the caller may write weights now
  }
}

void Coordinator::use_newest_weights(int pipeline) { at(pipeline).evaluates_newest = true; }

const StepOutcome& Coordinator::wait_norm(int pipeline, const StepOutcome& outcome) {
  wait_for_updates({.kind = WaitKind::kNorm, .numbers = {pipeline}},
                   [&] { (void)at(pipeline).updates->wait_norm(outcome); });
  return outcome;
}

std::exception_ptr Coordinator::finish() {
  {
    MutexLock lock(mutex_);
    if (error_is_known_) return nullptr;
  }
  try {
    synchronize();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

ActivationBudget Coordinator::activation_budget(int pipeline) {
  MutexLock lock(mutex_);
  return at(pipeline).activation_budget;
}

Plan Coordinator::plan(int pipeline, PlanKind kind) {
  MutexLock lock(mutex_);
  return plans_.plan(pipeline, kind);
}

std::vector<LayerTiming> Coordinator::layer_times(int pipeline) {
  MutexLock lock(mutex_);
  return plans_.times(pipeline);
}

}  // namespace rp
