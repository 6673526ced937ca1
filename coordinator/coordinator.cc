#include "coordinator/coordinator.h"

#include <utility>

#include "common/check.h"
#include "common/run_depth.h"
#include "common/system/crash_point.h"
#include "common/text.h"
#include "coordinator/rounds/commit_check.h"
#include "coordinator/run_report.h"
#include "coordinator/updates/weight_stamps.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

Wait wait_for_round(WaitKind kind, const Round& round) {
  Wait wait{.kind = round.is(RoundState::kElsewhere) ? WaitKind::kNodeRound : kind,
            .numbers = {static_cast<std::int64_t>(round.number), round.traits.pipeline}};
  for (const Slot& slot : round.slots) {  // the last slot that the wait needs
    if (kind == WaitKind::kRoundEnd || slot.phase != Phase::kBackward)
      wait.slot = static_cast<std::int64_t>(slot.number.value());
  }
  return wait;
}

}  // namespace

Coordinator::Coordinator(Store& store, CoordinatorOptions options)
    : store_(store),
      options_(std::move(options)),
      inputs_(store),
      trace_(options_.trace, store.catalogue()),
      waits_(traced_waits(CoordinatorThread::kUser)),
      losses_(options_.network == nullptr ? nullptr : std::make_unique<LossExchange>(*options_.network, waker())),
      ids_(workers_exchange() ? std::make_unique<CommunicatorIds>(store, *options_.network) : nullptr),
      round_group_(workers_exchange() ? store.catalogue().place().num_nodes : 1),
      pipelines_(make_pipelines()),
      state_(store, inputs_, pipelines_, options_.board, options_.on_commit, losses_.get()),
      commit_(store, state_, trace_, traced_waits(CoordinatorThread::kCommit), options_.on_hang, options_.on_set_aside,
              [this](const std::exception_ptr& error) { fail(error); }) {
  if (options_.network != nullptr)
    options_.network->add_failure_handler([this](const std::exception_ptr& error) { fail(error); });
}

std::vector<std::unique_ptr<PipelineState>> Coordinator::make_pipelines() {
  const Catalogue& catalogue = store_.catalogue();
  RP_ASSERT(options_.pipelines.size() == catalogue.pipelines().size());
  std::vector<std::unique_ptr<PipelineState>> pipelines;
  for (std::uint32_t number = 0; number < options_.pipelines.size(); ++number) {
    const PipelineSettings& settings = options_.pipelines[number];
    auto state = std::make_unique<PipelineState>();
    state->number = static_cast<int>(number);
    state->settings = settings;
    state->first_trained_layer = catalogue.first_trained_layer(state->number);
    state->is_trained = state->first_trained_layer < static_cast<int>(catalogue.pipelines()[number].num_layers);
    state->updates = std::make_unique<Updates>(
        store_, number,
        UpdatesOptions{.num_threads = state->is_trained ? options_.optimizer_threads : 1,
                       .adds_rounds = settings.adds_rounds,
                       .loss_scaling = settings.loss_scaling,
                       .report_failure = [this](const std::exception_ptr& error) { fail(error); },
                       .waits = RunReport::waits(options_.board, CoordinatorThread::kUpdates, state->number),
                       .board = options_.board,
                       .trace = &trace_.updates(state->number),
                       .make_updater = options_.make_updater,
                       .journal = store_.journal(),
                       .network = options_.network});
    if (workers_exchange() && !settings.plan.by_hand) {
      state->plans = std::make_unique<PlanExchange>(
          *options_.network, state->number, static_cast<int>(catalogue.pipelines()[number].num_layers), waker());
    }
    pipelines.push_back(std::move(state));
  }
  return pipelines;
}

std::function<void()> Coordinator::waker() {
  return [this] {
    const MutexLock lock(state_.mutex);
    state_.wake();
  };
}

Coordinator::~Coordinator() { end(); }

void Coordinator::end() {
  if (commit_.is_joined()) return;
  fail(std::make_exception_ptr(Error(ExitCode::kUserError, "the session has ended")));
  commit_.join();
  if (ids_) ids_->stop();
  if (options_.network != nullptr) options_.network->stop();
  for (const auto& pipeline : pipelines_) pipeline->updates->end();  // failures that they report still arrive here
  store_.epoch().publish_wanted(kEndEpoch);
}

void Coordinator::set_buffers(int pipeline, const std::map<int, BlockContents>& buffers) {
  if (buffers.empty()) return;
  auto round = std::make_shared<Round>();
  round->traits.pipeline = pipeline;
  round->number = Round::kNoNumber;
  round->num_layers = static_cast<int>(store_.catalogue().pipelines()[pipeline].num_layers);
  round->move_to(RoundState::kDone);
  inputs_.place_table(*round);
  const RoundTable table = store_.round_table(*round);
  for (const auto& [layer, contents] : buffers) inputs_.place(contents, table, BlockKind::kBuffers, layer, 0);
  MutexLock lock(state_.mutex);
  for (const auto& [layer, contents] : buffers)
    state_.flow.buffers(pipeline).set(layer, {round, {BlockKind::kBuffers, layer}});
}

std::map<int, BlockOfRound> Coordinator::buffers(int pipeline, BuffersOf which) {
  MutexLock lock(state_.mutex);
  const PipelineBuffers& buffers = state_.flow.buffers(pipeline);
  return which == BuffersOf::kLastRound ? buffers.newest() : buffers.of_step();
}

void Coordinator::restart_at(int pipeline, std::uint64_t steps, std::uint64_t rounds, const UpdateHistory& history) {
  PipelineState& state = at(pipeline);
  RP_ASSERT(state.rounds_since_step == 0);
  const Version next = state.version() + 2;  // an asynchronous round also computes with the version before
  state.restart_at(steps, rounds, next);
  trace_.updates(pipeline).set_version_of_step_0(state.version_of_step_0);
  state.updates->restart_at(next, history);
}

void Coordinator::finish_restart(int pipeline, const std::string& restart_data) {
  PipelineState& state = at(pipeline);
  if (!state.updates->records_steps()) return;
  StepRecord record{.steps = state.num_steps, .rounds = state.num_rounds, .history = {}, .restart_data = restart_data};
  {
    MutexLock lock(state_.mutex);
    record.results.buffers = state_.flow.contents_of(state_.flow.buffers(pipeline).newest());
  }
  state.updates->record_weights(state.version(), std::move(record));
}

int Coordinator::recover(int pipeline) {
  PipelineState& state = at(pipeline);
  if (!state.updates->records_steps()) return 0;
  const std::optional<Version> version = store_.journal()->newest(pipeline);
  const std::optional<StepRecord> record =
      version ? StepRecord::from_bytes(store_.journal()->record(pipeline, *version)) : std::nullopt;
  if (!record) {
    throw Error(
        ExitCode::kUserError,
        "the process before this one was writing weights that only it knew, so the run cannot go on where it was; "
        "resume from a checkpoint");
  }
  state.restart_at(record->steps, record->rounds, *version);
  trace_.updates(pipeline).set_version_of_step_0(state.version_of_step_0);
  const int num_left = state.updates->recover(*version, *record);
  std::map<int, BlockContents> buffers;
  for (const auto& [layer, block] : record->results.buffers) {
    const BlockHead head = read_block_head(block.data(), block.size());
    buffers[layer].tensors = head.views(block.data() + head.data_offset);
  }
  set_buffers(pipeline, buffers);
  return num_left;
}

void Coordinator::fail(const std::exception_ptr& error) {
  {
    MutexLock lock(state_.mutex);
    state_.fail(error);
  }
  commit_.interrupt();
  store_.failed().publish(1);
  for (const auto& pipeline : pipelines_) pipeline->updates->stop(error);
  if (options_.network != nullptr) options_.network->report_failure(error);
}

void Coordinator::lose_worker(int worker) {
  if (workers_exchange()) {  // all nodes would have to connect again
    return fail(std::make_exception_ptr(
        Error(ExitCode::kNodeLost,
              cat("worker ", worker, " was lost, and so is its node, node ", store_.catalogue().place().node,
                  ": with --reduce nccl a worker is not replaced; resume from the last "
                  "checkpoint"))));
  }
  {
    MutexLock lock(state_.mutex);
    state_.flow.lose_worker(worker);
    RP_CRASH_POINT("coordinator.epoch.loses_worker");
    state_.wake();
  }
  commit_.interrupt();
}

void Coordinator::set_aside(SlotNumber slot) {
  MutexLock lock(state_.mutex);
  state_.flow.set_aside(slot);
  state_.wake();
}

WaitRecord Coordinator::traced_waits(CoordinatorThread thread) {
  return RunReport::waits(options_.board, thread).traced_by(trace_.waits(thread));
}

// Accepting

void Coordinator::wait_for_flight(int pipeline) {
  MutexLock lock(state_.mutex);
  while (!state_.has_failed() && !may_begin_round(state_.flow.slots().num_flights(pipeline))) {
    state_.sleep(waits_, {.kind = WaitKind::kRoundPlace, .numbers = {pipeline}});
  }
  state_.check_failure();
  waits_.publish_none();
}

std::shared_ptr<Round> Coordinator::accept_round(const RoundTraits& traits, const RoundInputs& inputs,
                                                 const Plan* plan) {
  PipelineState& state = at(traits.pipeline);
  const std::uint64_t call = round_group_.count_round(traits.pipeline, traits.kind == RoundKind::kForwardBackward);
  RP_ASSERT(inputs.inputs.size() == static_cast<std::size_t>(traits.num_microbatches));
  if (!state.is_stamped) WeightStamps(store_).stamp_all(static_cast<std::uint32_t>(traits.pipeline), state.version());
  state.is_stamped = true;
  if (const int node = state.node_of_next(traits); !is_own(node)) return accept_elsewhere(traits, call, node);
  const std::int64_t since = trace_.now();
  std::optional<Plan> agreed;
  if (state.plans && traits.kind == RoundKind::kForwardBackward) {
    agreed = agreed_plan(state);
    if (plan == nullptr) plan = &*agreed;
  }
  wait_for_flight(traits.pipeline);
  auto round = state.next_round(traits, store_.catalogue().pipelines()[traits.pipeline]);
  round->call = call;
  round->num_input_imports = static_cast<int>(inputs.input_imports.size());
  round->num_argument_imports = static_cast<int>(inputs.argument_imports.size());
  {
    MutexLock lock(state_.mutex);
    state_.flow.set_plan(*round, plan);
  }
  if (workers_exchange()) state.count_exchanges(*round);
  RP_CRASH_POINT("coordinator.round.has_number");
  const std::int64_t copy_since = trace_.now();
  trace_.copy_inputs(*round, inputs_.place_round(*round, inputs), copy_since);
  state.count(traits, /*is_own=*/true);
  MutexLock lock(state_.mutex);
  state_.check_failure();
  state_.flow.accept(round, inputs);
  state_.wake();
  trace_.accept_round(*round, since);
  return round;
}

Plan Coordinator::agreed_plan(PipelineState& state) {
  MutexLock lock(state_.mutex);
  state.plans->begin_round(state_.flow.plans().plan(state.number, PlanKind::kFused));
  while (!state.plans->has_plan() && !state_.has_failed()) {
    state_.sleep(waits_,
                 {.kind = WaitKind::kNodePlan, .numbers = {static_cast<std::int64_t>(state.num_rounds), state.number}});
  }
  state_.check_failure();
  waits_.publish_none();
  state.agreed_plan = state.plans->take_plan();
  return *state.agreed_plan;
}

std::shared_ptr<Round> Coordinator::accept_elsewhere(const RoundTraits& traits, std::uint64_t call, int node) {
  RP_ASSERT(traits.gives_loss() && !traits.gives_outputs() && !traits.keeps_graph && !traits.input_gradient);
  PipelineState& state = at(traits.pipeline);
  auto round = state.next_round(traits, store_.catalogue().pipelines()[traits.pipeline]);
  round->call = call;
  state.count(traits, /*is_own=*/false);
  MutexLock lock(state_.mutex);
  state_.check_failure();
  round->move_to(RoundState::kElsewhere);
  if (traits.kind == RoundKind::kForwardBackward && state.is_trained)
    state.updates->round_elsewhere(node, round->next_version, round->place_in_step);
  losses_->receive(node, traits.pipeline, [this, round](std::vector<double> losses) {
    const MutexLock lock_of_network(state_.mutex);
    round->losses = std::move(losses);
    round->move_to(RoundState::kDone);
  });
  return round;
}

void Coordinator::accept_backward(const std::shared_ptr<Round>& round, const std::vector<BlockContents>& gradients) {
  PipelineState& state = at(round->traits.pipeline);
  RP_ASSERT(gradients.size() == static_cast<std::size_t>(round->traits.num_microbatches));
  wait_for_flight(round->traits.pipeline);
  const RoundTable table = store_.round_table(*round);
  for (std::size_t m = 0; m < gradients.size(); ++m) {
    inputs_.place(gradients[m], table, BlockKind::kGradient, round->num_layers, static_cast<int>(m));
  }
  MutexLock lock(state_.mutex);
  state_.check_failure();
  state_.flow.accept_backward(round, state.num_attempts, static_cast<std::uint64_t>(state.rounds_since_step));
  state.count_backward(/*is_own=*/true);
  state_.wake();
}

void Coordinator::drop_graph(const std::shared_ptr<Round>& round) {
  MutexLock lock(state_.mutex);
  state_.flow.drop_graph(round);
}

void Coordinator::drop(const BlockOfRound& block) {
  MutexLock lock(state_.mutex);
  state_.flow.release(block);
}

std::shared_ptr<StepOutcome> Coordinator::accept_step(int pipeline, StepRequest request) {
  PipelineState& state = at(pipeline);
  RP_ASSERT(state.rounds_since_step > 0);
  {
    MutexLock lock(state_.mutex);
    state_.check_failure();
    state_.flow.buffers(pipeline).end_step();
  }
  request.num_rounds = static_cast<std::uint64_t>(state.rounds_since_step);
  request.num_forwards = state.num_rounds - state.num_rounds_of_steps;
  const Version used_version = state.count_step(request);
  request.call_hash = state.calls.value();
  request.steps = state.num_steps;
  request.rounds = state.num_rounds_of_steps;
  return state.updates->accept_step(state.version(), used_version, std::move(request));
}

// Waiting

void Coordinator::wait_forward(const Round& round) {
  round_group_.check_wait(round.call, "losses or outputs of a round are read");
  MutexLock lock(state_.mutex);
  while (!round.forward_is_done() && !state_.has_failed())
    state_.sleep(waits_, wait_for_round(WaitKind::kOutputs, round));
  if (!round.forward_is_done()) state_.check_failure();
  waits_.publish_none();
}

void Coordinator::wait_all(const Round& round) {
  round_group_.check_wait(round.call, "outputs of a round are read");
  MutexLock lock(state_.mutex);
  while (!round.is_done() && !state_.has_failed()) state_.sleep(waits_, wait_for_round(WaitKind::kRoundEnd, round));
  if (!round.is_done()) state_.check_failure();
  waits_.publish_none();
}

const std::byte* Coordinator::block(const Round& round, BlockRow row, int microbatch, std::uint64_t& bytes) {
  const RoundTable table = store_.round_table(round);
  check_kept_block(store_, table, row, microbatch);
  const BlockPlace& place = table.place(row.kind, row.index, microbatch);
  bytes = place.bytes;
  return store_.block_data(place);
}

template <typename Do>
void Coordinator::wait_for_updates(const Wait& what, Do wait) {
  waits_.publish(what);
  try {
    wait();
    waits_.publish_none();
  } catch (...) {
    MutexLock lock(state_.mutex);
    state_.set_known();
    throw;
  }
}

void Coordinator::wait_step(int pipeline) {
  const Wait what{.kind = WaitKind::kUpdates,
                  .numbers = {static_cast<std::int64_t>(at(pipeline).version().value()), pipeline}};
  wait_for_updates(what, [&] { at(pipeline).updates->wait_applied(at(pipeline).version()); });
}

void Coordinator::synchronize() {
  round_group_.check_complete("a call waits for all rounds");
  {
    MutexLock lock(state_.mutex);
    const Dispatcher& slots = state_.flow.slots();
    while (slots.num_committed() < slots.num_appended() && !state_.has_failed()) {
      state_.sleep(waits_, {.kind = WaitKind::kCommits});
    }
    while (losses_ != nullptr && !losses_->is_idle() && !state_.has_failed()) {
      state_.sleep(waits_, {.kind = WaitKind::kNodeReceipt});
    }
    state_.check_failure();
    waits_.publish_none();
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
    MutexLock lock(state_.mutex);
    if (state_.is_known()) return nullptr;
  }
  try {
    round_group_.check_complete("the program ends");
    synchronize();
  } catch (...) {
    return std::current_exception();
  }
  if (ids_) ids_->finish();
  return nullptr;
}

std::vector<DeviceMemoryPeaks> Coordinator::device_memory() {
  MutexLock lock(state_.mutex);
  return state_.flow.device_memory();
}

ActivationBudget Coordinator::activation_budget(int pipeline) {
  MutexLock lock(state_.mutex);
  return state_.flow.activation_budget(pipeline);
}

Plan Coordinator::plan(int pipeline, PlanKind kind) {
  if (const auto& agreed = at(pipeline).agreed_plan; agreed && kind == PlanKind::kFused) return *agreed;
  MutexLock lock(state_.mutex);
  return state_.flow.plans().plan(pipeline, kind);
}

std::vector<LayerTiming> Coordinator::layer_times(int pipeline) {
  MutexLock lock(state_.mutex);
  return state_.flow.plans().times(pipeline);
}

}  // namespace rp
