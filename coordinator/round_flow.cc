#include "coordinator/round_flow.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/run_order.h"
#include "coordinator/rounds/commit_check.h"
#include "coordinator/rounds/task_failure.h"

namespace rp {

namespace {

std::vector<PlanSettings> plan_settings(const std::vector<std::unique_ptr<PipelineState>>& pipelines) {
  std::vector<PlanSettings> settings;
  for (const auto& pipeline : pipelines) settings.push_back(pipeline->settings.plan);
  return settings;
}

std::size_t first_backward_slot(const Round& round) {
  const auto first = std::find_if(round.slots.begin(), round.slots.end(),
                                  [](const Slot& slot) { return slot.phase == Phase::kBackward; });
  return static_cast<std::size_t>(first - round.slots.begin());
}

}  // namespace

RoundFlow::RoundFlow(Store& store, InputBlocks& inputs, const std::vector<std::unique_ptr<PipelineState>>& pipelines,
                     std::optional<FaultBoardEntry> board, OnCommit on_commit, LossExchange* other_nodes)
    : store_(store),
      inputs_(inputs),
      on_commit_(std::move(on_commit)),
      other_nodes_(other_nodes),
      plans_(store.catalogue(), plan_settings(pipelines)),
      epochs_(store),
      dispatcher_(store, store.catalogue().workers_exchange()),
      frees_(store),
      blocks_(store, inputs, frees_),
      report_(board),
      device_memory_(store.num_workers()) {
  for (const auto& pipeline : pipelines) {
    const PipelineSettings& settings = pipeline->settings;
    const bool next_needs_step = pipeline->first_trained_layer == 0 && !settings.asynchronous && !settings.adds_rounds;
    pipelines_.push_back({.updates = *pipeline->updates,
                          .rounds_overlap = !next_needs_step,
                          .activation_budget = ActivationBudget(store.num_workers()),
                          .buffers = PipelineBuffers(blocks_)});
  }
}

void RoundFlow::set_plan(Round& round, const Plan* plan) const {
  const PlanKind kind = round.traits.plan_kind(round.traits.keeps_graph);
  round.plan = plan != nullptr ? plan_for(kind, *plan, round.num_layers) : plans_.plan(round.traits.pipeline, kind);
  round.slots = slots_of(round.plan, round.num_layers, round.first_trained_layer);
}

void RoundFlow::accept(const std::shared_ptr<Round>& round, const RoundInputs& inputs) {
  RoundBlocks::import(*round, inputs.input_imports, inputs.argument_imports);
  const std::vector<BlockOfRound> old_buffers = at(round->traits.pipeline).buffers.enter(round);
  blocks_.add_readers(*round);
  for (const BlockOfRound& old : old_buffers) blocks_.release(old);
  const bool is_whole = round->traits.kind == RoundKind::kForwardBackward;
  round->move_to(round->traits.keeps_graph ? RoundState::kForwardOfGraph : RoundState::kForward);
  launch(round, 0, is_whole ? round->slots.size() : first_backward_slot(*round));
}

void RoundFlow::accept_backward(const std::shared_ptr<Round>& round, std::uint64_t attempt,
                                std::uint64_t place_in_step) {
  round->move_to(round->is(RoundState::kGraphOpen) ? RoundState::kBackward : RoundState::kForward);
  round->attempt = attempt;
  round->place_in_step = place_in_step;
  launch(round, first_backward_slot(*round), round->slots.size());
}

void RoundFlow::launch(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot) {
  Updates& updates = at(round->traits.pipeline).updates;
  for (std::size_t i = first_slot; i < end_slot; ++i) {
    const bool gives_gradient = round->slots[i].phase != Phase::kForward;
    for_trained_uses(*round, round->slots[i].layers,
                     [&](UseId use) { updates.task_accepted(round->next_version, use, gives_gradient); });
  }
  dispatcher_.append(round, first_slot, end_slot);
  dispatcher_.dispatch();
  report_.round(*round);
  report_.slots(dispatcher_);
}

void RoundFlow::drop_graph(const std::shared_ptr<Round>& round) {
  if (!round->graph_is_open()) return;
  if (round->is(RoundState::kForwardOfGraph)) round->move_to(RoundState::kForward);
  std::vector<Command> dropped;
  while (!round->slots.empty() && round->slots.back().phase == Phase::kBackward) {
    dropped.push_back(command_of(*round, round->slots.back()));
    round->slots.pop_back();
  }
  blocks_.drop(round, dropped);
  // No task will compute the gradient that was kept for the caller.
  if (round->traits.input_gradient) blocks_.release({round, {BlockKind::kGradient, 0}});
  if (round->num_committed == round->slots.size()) end(*round);
}

template <typename Do>
void RoundFlow::for_trained_uses(const Round& round, const LayerRange& layers, Do&& action) {
  const Catalogue& catalogue = store_.catalogue();
  for (int layer = layers.end; layer-- > layers.first;) {
    for (const UseId use : catalogue.uses_of(round.catalogue_layer(layer))) {
      if (catalogue.weight_groups()[catalogue.uses()[use].group].is_trained != 0) action(use);
    }
  }
}

// Epochs

void RoundFlow::lose_worker(int worker) {
  epochs_.lose(worker);
  if (epochs_.is_changing()) end_epoch();
}

std::optional<Command> RoundFlow::set_aside_task() const {
  if (!dispatcher_.is_held()) return std::nullopt;
  const Dispatcher::Next next = dispatcher_.next();
  return command_of(*next.round, *next.slot);
}

void RoundFlow::admit_ready_workers() {
  if (static_cast<int>(dispatcher_.members().size()) == store_.num_workers()) return;
  epochs_.admit_ready();
  if (epochs_.is_changing()) end_epoch();
}

void RoundFlow::end_epoch() {
  dispatcher_.end_epoch();
  frees_.end_epoch();
}

void RoundFlow::begin_epoch(const std::vector<int>& workers) {
  for (const std::uint64_t list : std::exchange(lists_, {})) inputs_.free(list);  // no worker reads them any more
  for (const int worker : workers) {
    const std::vector<LiveBlock> live = blocks_.live(worker);
    WorkerWords& words = store_.worker_words(worker);
    words.num_live_blocks = live.size();
    if (live.empty()) continue;
    words.live_blocks = inputs_.place_list(live);
    lists_.push_back(words.live_blocks);
  }
  frees_.begin_epoch(epochs_.epoch(), workers);
  dispatcher_.begin_epoch(epochs_.epoch(), workers);
  epochs_.begin(workers);
  dispatcher_.dispatch();
  report_.slots(dispatcher_);
}

// Commit

std::exception_ptr RoundFlow::commit(const Completion& completion) {
  const Dispatcher::Next next = dispatcher_.next();
  Round& round = *next.round;
  const Slot& slot = *next.slot;
  RP_ASSERT(completion.slot == SlotInEpoch(dispatcher_.epoch(), slot.number));
  if (completion.outcome == TaskOutcome::kFailed)
    return std::make_exception_ptr(task_failure(store_, command_of(round, slot), slot.worker));
  check_weights_seen(store_, round, slot);
  plans_.note_memory(completion.memory);
  device_memory_[slot.worker] = completion.memory;
  dispatcher_.commit_next();
  ++round.num_committed;
  if (on_commit_) on_commit_({.round = round, .slot = slot, .completion = completion});
  if (slot.layers.end == round.num_layers && slot.phase != Phase::kBackward) {
    if (round.traits.gives_loss()) commit_losses(round);
    if (round.graph_is_open()) {
      round.move_to(RoundState::kGraphOpen);
    } else if (round.num_committed < round.slots.size()) {
      round.move_to(RoundState::kBackward);
    }
  }
  blocks_.commit(next.round, command_of(round, slot));
  report_results(next.round, slot);
  commit_gradients(round, slot);
  if (!round.graph_is_open() && round.num_committed == round.slots.size()) end(round);
  dispatcher_.dispatch();
  report_.slots(dispatcher_);
  return nullptr;
}

// Called before the gradients are committed, after which the step may be applied.
void RoundFlow::report_results(const std::shared_ptr<Round>& round, const Slot& slot) {
  Pipeline& pipeline = at(round->traits.pipeline);
  if (!pipeline.updates.records_steps() || round->traits.mode != RoundMode::kTrain) return;
  if (slot.layers.end == round->num_layers && slot.phase != Phase::kBackward) {
    std::map<int, BlockOfRound> buffers;
    for (const auto& [layer, _] : pipeline.buffers.newest()) buffers[layer] = {round, {BlockKind::kBuffers, layer}};
    pipeline.updates.forward_ended(round->next_version, contents_of(buffers));
  }
  const bool goes_back = round->traits.kind == RoundKind::kForwardBackward || round->is(RoundState::kBackward);
  if (goes_back && round->num_committed == round->slots.size())
    pipeline.updates.round_ended(round->next_version, round->losses);
}

std::map<int, std::vector<std::byte>> RoundFlow::contents_of(const std::map<int, BlockOfRound>& blocks) const {
  std::map<int, std::vector<std::byte>> contents;
  for (const auto& [layer, block] : blocks) {
    const BlockPlace& place = store_.round_table(*block.round).place(block.row.kind, block.row.index, 0);
    const std::byte* const data = store_.block_data(place);
    contents[layer] = {data, data + place.bytes};
  }
  return contents;
}

void RoundFlow::commit_losses(Round& round) {
  const RoundTable table = store_.round_table(round);
  round.losses.assign(table.loss(0).num, 0);
  for (int m = 0; m < round.traits.num_microbatches; ++m) {
    for (std::size_t i = 0; i < round.losses.size(); ++i) round.losses[i] += table.loss(m).values[i];
  }
  if (other_nodes_ != nullptr) other_nodes_->send(round.traits.pipeline, round.losses);
}

void RoundFlow::commit_gradients(const Round& round, const Slot& slot) {
  Updates& updates = at(round.traits.pipeline).updates;
  for_trained_uses(round, slot.layers, [&](UseId use) {
    if (slot.phase == Phase::kForward) {
      updates.task_committed(round.next_version, use);
    } else {
      const RoundTable table = store_.round_table(round);
      updates.gradient_committed(round.next_version,
                                 {.use = use,
                                  .round = round.place_in_step,
                                  .released_after = round.attempt + 1,
                                  .checksum = table.is_checked() ? table.gradient_checksum(use) : 0},
                                 table.square_sum(use));
    }
  });
}

void RoundFlow::end(Round& round) {
  round.move_to(RoundState::kDone);
  const bool went_back = !round.slots.empty() && round.slots.back().phase == Phase::kBackward;
  const PlanKind kind = round.traits.plan_kind(went_back);
  plans_.learn(round.traits.pipeline, kind, store_.round_table(round));
  learn_memory(kind, round);
  blocks_.end(round);
}

void RoundFlow::learn_memory(PlanKind kind, const Round& round) {
  if (round.slots.empty()) return;
  Pipeline& pipeline = at(round.traits.pipeline);
  const bool rounds_overlap = !round.traits.has_backward() || pipeline.rounds_overlap;
  pipeline.activation_budget.learn(kind,
                                   memory_of(round, store_.round_table(round), store_.catalogue(), rounds_overlap,
                                             plans_.times(round.traits.pipeline)),
                                   round.slots.front().worker);
}

}  // namespace rp
