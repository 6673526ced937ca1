#include "optimizer/update_journal.h"

#include <algorithm>

#include "common/check.h"
#include "common/order_stores.h"

namespace rp {

namespace {

constexpr std::size_t kLine = 64;

constexpr std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

constexpr std::size_t slots_offset(std::size_t num_chunks) {
  return kLine + lines(num_chunks * sizeof(std::atomic<std::uint64_t>));
}

// Takes back what may be half written. Returns the first element that is not updated then.
std::size_t undo(const GroupState& state, const UpdateUndo& undo) {
  const std::size_t first = undo.place >> 8;
  const std::size_t num = undo.place >> 1 & 0x7f;
  const std::size_t half = undo.place & 1;
  // A master that is written to another place is not overwritten.
  if (state.master == state.old_master) std::copy_n(undo.master[half], num, state.master + first);
  if (state.m != nullptr) std::copy_n(undo.m[half], num, state.m + first);
  if (state.v != nullptr) std::copy_n(undo.v[half], num, state.v + first);
  return first;
}

}  // namespace

std::size_t UpdateJournal::bytes(std::size_t num_chunks, int num_threads) {
  return slots_offset(num_chunks) + static_cast<std::size_t>(num_threads) * sizeof(UndoSlot);
}

UpdateJournal::UpdateJournal(std::byte* memory, std::size_t num_chunks, int num_threads)
    : pass_(reinterpret_cast<std::atomic<std::uint64_t>*>(memory)),
      marks_(reinterpret_cast<std::atomic<std::uint64_t>*>(memory + kLine)),
      slots_(reinterpret_cast<UndoSlot*>(memory + slots_offset(num_chunks))),
      num_chunks_(num_chunks),
      num_threads_(num_threads) {
  RP_ASSERT(reinterpret_cast<std::uintptr_t>(memory) % kLine == 0);
}

void UpdateJournal::run(std::uint64_t pass, const GroupState& state, std::size_t chunk_elements, ThreadTeam& team,
                        const Update& update) {
  const std::size_t num_chunks = (state.num_elements + chunk_elements - 1) / chunk_elements;
  RP_ASSERT(pass != 0 && num_chunks <= num_chunks_ && team.num_threads() <= num_threads_);
  const auto chunk_at = [&](std::uint64_t number) {
    const std::size_t begin = number * chunk_elements;
    return Chunk{.number = number, .begin = begin, .end = std::min(begin + chunk_elements, state.num_elements)};
  };
  if (last_pass() == pass) {
    // First, because the team overwrites the slots.
    for (int i = 0; i < num_threads_; ++i) {
      UndoSlot& slot = slots_[i];
      if (slot.pass.load(std::memory_order_relaxed) != pass || is_complete(slot.chunk, pass)) continue;
      finish(slot, chunk_at(slot.chunk), undo(state, slot.undo), state, update);
    }
  }
  pass_->store(pass, std::memory_order_relaxed);
  order_stores();
  team.run(num_chunks, [&](std::size_t number, int thread) {
    if (is_complete(number, pass)) return;
    const Chunk chunk = chunk_at(number);
    UndoSlot& slot = slots_[thread];
    slot.pass.store(0, std::memory_order_relaxed);
    order_stores();
    slot.chunk = chunk.number;
    slot.undo.place = UpdateUndo::place_of(chunk.begin, 0, 0);
    order_stores();
    slot.pass.store(pass, std::memory_order_relaxed);
    order_stores();
    finish(slot, chunk, chunk.begin, state, update);
  });
}

void UpdateJournal::finish(UndoSlot& slot, const Chunk& chunk, std::size_t begin, const GroupState& state,
                           const Update& update) {
  GroupState with_undo = state;
  with_undo.undo = &slot.undo;
  update(with_undo, begin, chunk.end);
  order_stores();
  marks_[chunk.number].store(slot.pass.load(std::memory_order_relaxed), std::memory_order_relaxed);
  order_stores();
}

}  // namespace rp
