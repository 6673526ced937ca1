#include "coordinator/rounds/dispatcher.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/run_depth.h"
#include "common/system/crash_point.h"

namespace rp {

namespace {

static_assert(kTasksAhead + 1 < static_cast<int>(kCommandRing) && kTasksAhead + 1 < static_cast<int>(kCompletionRing));

}  // namespace

Dispatcher::Dispatcher(Store& store, bool trains_in_place)
    : store_(store),
      trains_in_place_(trains_in_place),
      outstanding_(store.num_workers()),
      next_event_(store.num_workers()) {
  for (int worker = 0; worker < store.num_workers(); ++worker) {
    commands_.push_back(store.command_writer(worker));
    members_.push_back(worker);
  }
}

void Dispatcher::begin_epoch(Epoch epoch, std::vector<int> members) {
  epoch_ = epoch;
  members_ = std::move(members);
  for (const int worker : members_) commands_[worker].discard();
  std::fill(outstanding_.begin(), outstanding_.end(), 0);
  num_dispatched_ = num_committed_;
  for (const Flight& flight : flights_) {
    for (std::size_t i = flight.first_slot; i < flight.end_slot; ++i) {
      Slot& slot = flight.round->slots[i];
      if (slot.task.is(TaskState::kDispatched)) flight.round->move_to(slot, TaskState::kAccepted);
    }
  }
}

void Dispatcher::append(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot) {
  RP_ASSERT(first_slot < end_slot);
  const bool is_trained = round->traits.mode == RoundMode::kTrain;
  const std::uint64_t offset = trains_in_place_ && is_trained ? num_trained_ : num_appended_;
  if (is_trained) num_trained_ += end_slot - first_slot;
  for (std::size_t i = first_slot; i < end_slot; ++i) {
    Slot& slot = round->slots[i];
    slot.number = SlotNumber(num_appended_++);
    round->move_to(slot, TaskState::kAccepted);
  }
  flights_.push_back({.round = round, .first_slot = first_slot, .end_slot = end_slot, .offset = offset});
}

void Dispatcher::hold_from(SlotNumber slot) {
  if (slot < SlotNumber(num_committed_)) return;
  held_from_ = std::min(slot, held_from_.value_or(slot));
}

void Dispatcher::dispatch() {
  if (members_.empty()) return;
  for (const Flight& flight : flights_) {
    for (std::size_t i = flight.first_slot; i < flight.end_slot; ++i) {
      Slot& slot = flight.round->slots[i];
      if (!slot.task.is(TaskState::kAccepted)) continue;
      if (held_from_ && slot.number >= *held_from_) return;
      // Slots are dispatched in order, so later ones wait as well.
      const int worker = worker_of(flight, i);
      if (!may_send_task(outstanding_[worker])) return;
      send(*flight.round, slot, worker);
    }
  }
}

void Dispatcher::send(Round& round, Slot& slot, int worker) {
  const auto num_microbatches = static_cast<std::uint64_t>(round.traits.num_microbatches);
  slot.worker = worker;
  slot.first_event = next_event_[worker];
  next_event_[worker] = slot.first_event + num_microbatches;
  ++outstanding_[worker];
  ++num_dispatched_;
  Command command = command_of(round, slot);
  command.slot = SlotInEpoch(epoch_, slot.number);
  command.first_event = slot.first_event;
  const RoundTable table = store_.round_table(round);
  for (const BlockRow& row : output_rows(command, store_.catalogue())) {
    table.source(row.kind, row.index) = {
        .worker = slot.worker,
        .first_event = EventInEpoch(epoch_, slot.first_event + (is_once_a_task(row.kind) ? num_microbatches - 1 : 0))};
  }
  RP_CRASH_POINT("coordinator.dispatch.writes_sources");
  round.move_to(slot, TaskState::kDispatched);
  RP_ASSERT(commands_[worker].try_push(command));
  RP_CRASH_POINT("coordinator.dispatch.pushes");
}

Dispatcher::Next Dispatcher::next() const {
  RP_ASSERT(num_committed_ < num_dispatched_ || is_held());
  const Flight& flight = flights_.front();
  const std::size_t index =
      flight.first_slot + (SlotNumber(num_committed_) - flight.round->slots[flight.first_slot].number);
  return {.round = flight.round, .slot = &flight.round->slots[index], .ends_flight = index + 1 == flight.end_slot};
}

void Dispatcher::commit_next() {
  const Next committed = next();
  committed.round->move_to(*committed.slot, TaskState::kCommitted);
  --outstanding_[committed.slot->worker];
  ++num_committed_;
  if (committed.ends_flight) flights_.pop_front();
}

int Dispatcher::num_flights(int pipeline) const {
  return static_cast<int>(std::count_if(flights_.begin(), flights_.end(), [pipeline](const Flight& flight) {
    return flight.round->traits.pipeline == pipeline;
  }));
}

}  // namespace rp
