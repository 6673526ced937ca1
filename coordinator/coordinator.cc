#include "coordinator/coordinator.h"

#include <pthread.h>

#include <algorithm>

#include "common/check.h"
#include "common/text.h"
#include "coordinator/commit_check.h"
#include "coordinator/task_failure.h"
#include "coordinator/weight_stamps.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

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
      completions_(store, options_.on_hang),
      inputs_(store),
      trace_(options_.trace, store.catalogue()),
      user_waits_(traced_waits(CoordinatorThread::kUser)),
      commit_waits_(traced_waits(CoordinatorThread::kCommit)),
      plans_(store.catalogue(), plan_settings(options_)),
      dispatcher_(store),
      blocks_(store, inputs_),
      report_(options_.board) {
  const Catalogue& catalogue = store.catalogue();
  RP_ASSERT(options_.pipelines.size() == catalogue.pipelines().size());
  for (std::uint32_t number = 0; number < options_.pipelines.size(); ++number) {
    const PipelineSettings& settings = options_.pipelines[number];
    auto state = std::make_unique<PipelineState>();
    state->number = static_cast<int>(number);
    state->settings = settings;
    state->activation_budget = ActivationBudget(store.num_workers());
    state->first_trained_layer = catalogue.first_trained_layer(state->number);
    state->is_trained = state->first_trained_layer < static_cast<int>(catalogue.pipelines()[number].num_layers);
    state->updates = std::make_unique<Updates>(
        store, number, UpdatesOptions{.num_threads = state->is_trained ? options_.optimizer_threads : 1,
                                      .adds_rounds = settings.adds_rounds,
                                      .loss_scaling = settings.loss_scaling,
                                      .report_failure = [this](std::exception_ptr error) { fail(std::move(error)); },
                                      .waits = RunReport::waits(options_.board, CoordinatorThread::kUpdates, state->number),
                                      .trace = &trace_.updates(state->number),
                                      .modelled = options_.modelled_memory});
    pipelines_.push_back(std::move(state));
  }
  thread_ = std::thread([this] { follow_completions(); });
}

Coordinator::~Coordinator() { end(); }

void Coordinator::end() {
  if (!thread_.joinable()) return;
  fail(std::make_exception_ptr(Error(ExitCode::kUserError, "the session has ended")));
  thread_.join();
  for (const auto& pipeline : pipelines_) pipeline->updates->end();  // what they report comes here
  store_.epoch().publish(kEndEpoch);
}

void Coordinator::set_buffers(int pipeline, const std::map<int, BlockContents>& buffers) {
  if (buffers.empty()) return;
  auto round = std::make_shared<Round>();
  round->traits.pipeline = pipeline;
  round->num_layers = static_cast<int>(store_.catalogue().pipelines()[static_cast<std::size_t>(pipeline)].num_layers);
  round->forward_done = round->all_done = true;
  inputs_.place_table(*round, shape_of(*round));
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
  state.restart_at(steps, rounds, next);
  trace_.updates(pipeline).set_version_offset(next - steps);
  state.updates->restart_at(next, history);
}

void Coordinator::fail(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
    changed_.notify_all();
  }
  completions_.stop();
  store_.failed().publish(1);
  for (const auto& pipeline : pipelines_) pipeline->updates->stop(error);
}

WaitRecord Coordinator::traced_waits(CoordinatorThread thread) {
  return RunReport::waits(options_.board, thread).traced_by(trace_.waits(thread));
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
  while (!error_ && dispatcher_.num_flights(pipeline.number) >= kRoundsInFlight) {
    sleep(user_waits_, {.kind = WaitKind::kRoundPlace, .numbers = {number}});
  }
  check_failure();
  user_waits_.publish_none();
}

std::shared_ptr<Round> Coordinator::new_round(const RoundTraits& traits, const RoundInputs& inputs, const Plan* plan) {
  const PipelineRecord& record = store_.catalogue().pipelines()[static_cast<std::size_t>(traits.pipeline)];
  auto round = at(traits.pipeline).next_round(traits, record);
  round->num_input_imports = static_cast<int>(inputs.input_imports.size());
  round->num_argument_imports = static_cast<int>(inputs.argument_imports.size());
  const PlanKind kind = traits.plan_kind(traits.keeps_graph);
  MutexLock lock(mutex_);
  round->plan = plan != nullptr ? plan_for(kind, *plan, round->num_layers) : plans_.plan(traits.pipeline, kind);
  round->slots = slots_of(round->plan, round->num_layers, round->first_trained_layer);
  return round;
}

std::shared_ptr<Round> Coordinator::accept_round(const RoundTraits& traits, const RoundInputs& inputs, const Plan* plan) {
  PipelineState& state = at(traits.pipeline);
  RP_ASSERT(inputs.inputs.size() == static_cast<std::size_t>(traits.num_microbatches));
  const std::int64_t since = trace_.now();
  wait_for_flight(state);
  if (!state.is_stamped) WeightStamps(store_).stamp_all(static_cast<std::uint32_t>(traits.pipeline), state.version());
  state.is_stamped = true;
  const std::shared_ptr<Round> round = new_round(traits, inputs, plan);
  // Without a loss nobody would read the arguments.
  const std::vector<BlockContents> none;
  const bool has_loss = traits.kind == RoundKind::kForwardBackward;
  const std::vector<BlockContents>& arguments = has_loss ? inputs.arguments : none;
  const std::int64_t copy_since = trace_.now();
  inputs_.place_round(*round, shape_of(*round), inputs.inputs, arguments);
  trace_.copy_inputs(*round, inputs.inputs, arguments, copy_since);
  state.count(traits);
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
  trace_.accept_round(*round, since);
  return round;
}

void Coordinator::launch(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot) {
  Updates& updates = *at(round->traits.pipeline).updates;
  for (std::size_t i = first_slot; i < end_slot; ++i) {
    for_trained_uses(*round, round->slots[i].layers, [&](std::uint32_t use) { updates.task_accepted(round->next_version, use); });
  }
  dispatcher_.append(round, first_slot, end_slot);
  dispatcher_.dispatch();
  report_.round(*round);
  report_.slots(dispatcher_);
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
  round->attempt = state.num_attempts;
  state.count_backward();
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
  const std::uint64_t used_version = state.count_step();
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

// Commit

void Coordinator::follow_completions() {
  pthread_setname_np(pthread_self(), "rp-commit");
  try {
    while (true) {
      std::uint64_t slot = 0;
      int worker = 0;
      {
        MutexLock lock(mutex_);
        while (!error_ && dispatcher_.num_committed() >= dispatcher_.num_dispatched()) sleep(commit_waits_, {.kind = WaitKind::kNextSlot});
        if (error_) return;
        commit_waits_.publish_none();
        slot = dispatcher_.num_committed();
        worker = dispatcher_.next().slot->worker;
      }
      const std::optional<Completion> completion = completions_.wait(worker, slot, commit_waits_, [this] {
        MutexLock lock(mutex_);
        return blocks_.flush_frees() ? Completions::kLongWait : Completions::kShortWait;
      });
      if (!completion) return;
      std::exception_ptr error;
      {
        MutexLock lock(mutex_);
        if (error_) return;
        const std::int64_t since = trace_.now();
        commit(*completion);
        trace_.commit(completion->slot, worker, since);
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

void Coordinator::commit(const Completion& completion) {
  const Dispatcher::Next next = dispatcher_.next();
  Round& round = *next.round;
  const Slot& slot = *next.slot;
  RP_ASSERT(completion.slot == in_epoch(store_.epoch().observe(), slot.number));
  if (completion.outcome == TaskOutcome::kFailed) {
    error_ = std::make_exception_ptr(task_failure(store_, round, slot));
    changed_.notify_all();
    return;
  }
  check_weights_seen(store_, round, slot);
  dispatcher_.commit_next();
  ++round.num_committed;
  if (options_.on_commit) options_.on_commit({.round = round, .slot = slot, .completion = completion});
  if (slot.phase == Phase::kFused) commit_losses(round);
  if (slot.layers.end == round.num_layers && slot.phase != Phase::kBackward) round.forward_done = true;
  blocks_.commit(next.round, command_of(round, slot));
  commit_gradients(round, slot);
  if (next.ends_flight && round.num_committed == round.slots.size()) end_round(round);
  dispatcher_.dispatch();
  report_.slots(dispatcher_);
  changed_.notify_all();
}

void Coordinator::commit_losses(Round& round) {
  const RoundTable table = table_of(round);
  round.losses.assign(table.loss(0).num, 0);
  for (int m = 0; m < round.traits.num_microbatches; ++m) {
    for (std::size_t i = 0; i < round.losses.size(); ++i) round.losses[i] += table.loss(m).values[i];
  }
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
  const bool went_back = !round.slots.empty() && round.slots.back().phase == Phase::kBackward;
  const PlanKind kind = round.traits.plan_kind(went_back);
  plans_.learn(round.traits.pipeline, kind, table_of(round));
  learn_memory(at(round.traits.pipeline), kind, round);
  blocks_.end(round);
}

void Coordinator::learn_memory(PipelineState& pipeline, PlanKind kind, const Round& round) {
  if (round.slots.empty()) return;
  const bool next_needs_step = round.traits.has_backward() && pipeline.first_trained_layer == 0 && !pipeline.settings.asynchronous &&
                               !pipeline.settings.adds_rounds;
  pipeline.activation_budget.learn(
      kind, memory_of(round, table_of(round), store_.catalogue(), !next_needs_step, plans_.times(pipeline.number)),
      static_cast<int>(round.slots.front().number % static_cast<std::uint64_t>(store_.num_workers())));
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
    while (dispatcher_.num_committed() < dispatcher_.num_appended() && !error_) sleep(user_waits_, {.kind = WaitKind::kCommits});
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
