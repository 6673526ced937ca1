#include "coordinator/coordinator.h"

#include <pthread.h>

#include <algorithm>

#include "common/check.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::size_t kRoundsInFlight = 2;
constexpr int kTasksAhead = 2;  // behind the one that runs
static_assert(kTasksAhead + 1 < static_cast<int>(kCommandRing) && kTasksAhead + 1 < static_cast<int>(kCompletionRing));
static_assert(kRoundsInFlight < kRoundPlaces);

// Layer times are taken over into the plan after these rounds: soon, and once more when they are smooth.
constexpr int kReplanAfter = 2;
constexpr int kReplanAgainAfter = 10;

}  // namespace

Coordinator::Coordinator(Store& store, CoordinatorOptions options)
    : store_(store),
      options_(std::move(options)),
      updates_(store, options_.optimizer_threads, options_.rounds_per_step),
      inputs_(store),
      outstanding_(static_cast<std::size_t>(store.num_workers())),
      next_event_(static_cast<std::size_t>(store.num_workers())),
      frees_(store),
      plan_(options_.plan),
      layer_times_(store.catalogue().num_layers()) {
  validate_plan(plan_, store.catalogue().num_layers());
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

void Coordinator::restart_at(std::uint64_t steps) {
  RP_ASSERT(rounds_since_step_ == 0);
  const std::uint64_t next = version() + 2;  // an asynchronous step computes with the version before, too
  num_steps_ = steps;
  num_rounds_ = steps * static_cast<std::uint64_t>(options_.rounds_per_step);
  version_offset_ = next - steps;
  updates_.restart_at(next);
}

void Coordinator::fail(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
    changed_.notify_all();
  }
  store_.failed().publish(1);
  updates_.stop(error);
}

void Coordinator::check_failure() {
  if (!error_) return;
  error_is_known_ = true;
  std::rethrow_exception(error_);
}

// Accepting

std::shared_ptr<RoundOutcome> Coordinator::accept_round(const std::vector<MicrobatchData>& microbatches, int loss) {
  RP_ASSERT(microbatches.size() == store_.header().num_microbatches);
  {
    MutexLock lock(mutex_);
    while (!error_ && rounds_.size() >= kRoundsInFlight) changed_.wait(mutex_);
    check_failure();
  }
  Round round;
  round.attempt = num_attempts_;
  round.number = num_rounds_;
  round.step = num_steps_ + 1;
  const std::uint64_t staleness = options_.asynchronous ? 2 : 1;
  round.version = (round.step >= staleness ? round.step - staleness : 0) + version_offset_;
  round.next_version = version() + 1;
  round.taken_before = round.attempt;  // what the attempt before this one gives back
  round.loss = loss;
  round.num_microbatches = static_cast<int>(microbatches.size());
  inputs_.place(round.attempt, microbatches);
  MutexLock lock(mutex_);
  check_failure();
  round.plan = plan_;
  round.slots = slots_of(plan_, store_.catalogue().num_layers(), next_slot_);
  round.outcome = std::make_shared<RoundOutcome>();
  next_slot_ += round.slots.size();
  rounds_.push_back(round);
  ++num_rounds_;
  ++num_attempts_;
  ++rounds_since_step_;
  dispatch();
  changed_.notify_all();
  return rounds_.back().outcome;
}

std::shared_ptr<StepOutcome> Coordinator::accept_step(const AdamW& rule, const StepOptions& options) {
  RP_ASSERT(rounds_since_step_ == options_.rounds_per_step);
  {
    MutexLock lock(mutex_);
    check_failure();
  }
  rounds_since_step_ = 0;
  ++num_steps_;
  return updates_.accept_step(version(), AdamWStep::of(rule, static_cast<std::int64_t>(num_steps_)), options);
}

// Dispatch

void Coordinator::dispatch() {
  for (Round& round : rounds_) {
    for (Slot& slot : round.slots) {
      if (slot.number < next_dispatch_) continue;
      const auto worker = static_cast<std::size_t>(slot.number % commands_.size());
      if (outstanding_[worker] > kTasksAhead) return;  // in slot order: later slots wait as well
      slot.worker = static_cast<int>(worker);
      slot.first_event = next_event_[worker];
      next_event_[worker] += static_cast<std::uint64_t>(round.num_microbatches);
      ++outstanding_[worker];
      ++next_dispatch_;
      RP_ASSERT(commands_[worker].try_push(command_for(round, slot)));
    }
  }
}

InputSource Coordinator::source_of(const Slot& producer) const {
  if (producer.number < commit_point_) return {};
  return {.worker = producer.worker, .first_event = producer.first_event};
}

Command Coordinator::command_for(const Round& round, const Slot& slot) const {
  Command command;
  command.phase = slot.phase;
  command.slot = in_epoch(store_.epoch().observe(), slot.number);
  command.round = round.number;
  command.step = round.step;
  command.attempt = round.attempt;
  command.version = round.version;
  command.taken_before = round.taken_before;
  command.first_event = slot.first_event;
  command.first_layer = slot.layers.first;
  command.end_layer = slot.layers.end;
  command.num_microbatches = round.num_microbatches;
  command.loss = round.loss;
  if (slot.layers.first > 0) {
    command.activation = source_of(round.slots[activation_producer(round.slots, slot.layers.first)]);
  }
  if (slot.phase == Phase::kBackward) {
    command.gradient = source_of(round.slots[gradient_producer(round.slots, slot.layers.end)]);
  }
  if (slot.phase == Phase::kForward) {
    for (const int boundary : saved_boundaries(round.plan, slot.layers)) command.save(boundary);
  }
  return command;
}

// Commit

void Coordinator::follow_completions() {
  pthread_setname_np(pthread_self(), "rp-commit");
  try {
    while (true) {
      int worker = 0;
      {
        MutexLock lock(mutex_);
        while (!error_ && commit_point_ >= next_dispatch_) changed_.wait(mutex_);
        if (error_) return;
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
      if (!frees_.flush()) wait_ns = kNsPerMs;
    }
    if (ring.wait({&stop_, wait_ns}) == WaitResult::kStopped) return false;
    silent_ns = store_.progress() == progress ? silent_ns + wait_ns : 0;
    progress = store_.progress();
    if (silent_ns > store_.header().wait_timeout_ns) {
      throw Error(ExitCode::kHang, cat("worker ", worker, " does not complete its task, and no worker computed anything for ",
                                       store_.header().wait_timeout_ns / kNsPerSecond, " s; is it stopped?"));
    }
  }
  return true;
}

void Coordinator::commit(const Completion& completion) {
  Round& round = rounds_.front();
  const Slot& slot = round.slots[commit_point_ - round.slots.front().number];
  RP_ASSERT(completion.slot == in_epoch(store_.epoch().observe(), slot.number));
  if (completion.outcome == TaskOutcome::kFailed) {
    commit_failure(round, slot);
    return;
  }
  if (slot.phase == Phase::kFused) {
    for (int m = 0; m < round.num_microbatches; ++m) round.outcome->loss += store_.loss(round.attempt, m);
    round.outcome->done = true;
  }
  for (const FreedBlock& freed : freed_blocks(round.plan, slot)) {
    for (int m = 0; m < round.num_microbatches; ++m) {
      free_block(store_.block_place(round.attempt, freed.kind, freed.boundary, m));
    }
  }
  --outstanding_[static_cast<std::size_t>(slot.worker)];
  ++commit_point_;
  if (slot.phase != Phase::kForward) commit_gradients(round, slot);
  if (commit_point_ == round.slots.back().number + 1) {
    end_round(round);
    rounds_.pop_front();
  }
  dispatch();
  changed_.notify_all();
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
    who = cat("layer ", record.layer, " (", store_.catalogue().layer(static_cast<int>(record.layer)).name.data(), ")");
  } else if (record.layer == FailureRecord::kLoss) {
    who = "the loss";
  }
  error_ = std::make_exception_ptr(WorkerError(cat(who, " failed", where, ": ", record.message.data()), place));
  changed_.notify_all();
}

void Coordinator::free_block(const BlockPlace& place) {
  if (place.arena == kCoordinatorArena) {
    inputs_.free(place.offset);
    return;
  }
  frees_.send(place.arena, {.epoch = store_.epoch().observe(), .offset = place.offset});
}

void Coordinator::commit_gradients(const Round& round, const Slot& slot) {
  for (int layer = slot.layers.end; layer-- > slot.layers.first;) {
    for (const std::uint32_t use : store_.catalogue().uses_of(layer)) {
      updates_.gradient_committed(round.next_version, use, round.taken_after(), store_.square_sum(round.attempt, use));
    }
  }
}

void Coordinator::end_round(const Round& round) {
  const int num_layers = store_.catalogue().num_layers();
  std::vector<std::int64_t> forward_ns, backward_ns;
  for (int layer = 0; layer < num_layers; ++layer) {
    const LayerTime& time = store_.layer_time(round.attempt, layer);
    forward_ns.push_back(time.forward_ns);
    backward_ns.push_back(time.backward_ns);
  }
  layer_times_.add(forward_ns, backward_ns);
  const int records = layer_times_.num_records();
  if (!options_.replan || (records != kReplanAfter && records != kReplanAgainAfter)) return;
  std::vector<LayerCost> costs;
  for (int layer = 0; layer < num_layers; ++layer) {
    std::uint64_t bytes = 0;
    for (const std::uint32_t use : store_.catalogue().uses_of(layer)) {
      bytes += store_.catalogue().blocks()[store_.catalogue().uses()[use].block].bytes();
    }
    costs.push_back({layer_times_.forward(layer), layer_times_.backward(layer), bytes});
  }
  plan_ = balanced_plan(costs, store_.num_workers(), options_.max_stage_bytes);
}

// Waiting

double Coordinator::wait_loss(const RoundOutcome& outcome) {
  MutexLock lock(mutex_);
  while (!outcome.done && !error_) changed_.wait(mutex_);
  if (!outcome.done) check_failure();
  return outcome.loss;
}

template <typename Wait>
void Coordinator::wait_for_updates(Wait wait) {
  try {
    wait();
  } catch (...) {
    MutexLock lock(mutex_);
    error_is_known_ = true;
    throw;
  }
}

void Coordinator::synchronize() {
  {
    MutexLock lock(mutex_);
    while (!rounds_.empty() && !error_) changed_.wait(mutex_);
    check_failure();
  }
  wait_for_updates([this] { updates_.wait_applied(version()); });
}

const StepOutcome& Coordinator::wait_norm(const StepOutcome& outcome) {
  wait_for_updates([&] { (void)updates_.wait_norm(outcome); });
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

Plan Coordinator::plan() {
  MutexLock lock(mutex_);
  return plan_;
}

}  // namespace rp
