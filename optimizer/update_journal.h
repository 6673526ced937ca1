// optimizer/update_journal.h
// Lets another process finish the update of a weight group: records which chunks are complete, and what the elements
// contained that were being overwritten.
//
// An update changes masters and moments in place, so an element must not be updated twice. Before a thread changes a
// few elements, it copies them, together with their place, into a slot of its own (UpdateUndo), whose memory stays in
// the processor's cache. When a process is killed, the stores of each thread up to some point have taken effect, and
// none after it.
//
// The journal is memory that outlives the process. Format: docs/formats/step_journal.md. Writer: the process that
// updates, with its ThreadTeam; one pass at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "common/shm_safe.h"
#include "kernels/update_arguments.h"
#include "optimizer/thread_team.h"

namespace rp {

// Describes the chunk that one thread updates.
struct UndoSlot {
  using ShmFormat = void;
  std::atomic<std::uint64_t> pass;  // the fields below are of this pass
  std::uint64_t chunk;
  std::uint64_t reserved[6];
  UpdateUndo undo;
};
static_assert(ShmSafe<UndoSlot> && sizeof(UndoSlot) % 64 == 0);

class UpdateJournal {
 public:
  // Returns the size of a journal for groups of at most `num_chunks` chunks and a team of `num_threads` threads.
  [[nodiscard]] static std::size_t bytes(std::size_t num_chunks, int num_threads);
  // `memory`: bytes(num_chunks, num_threads) bytes, aligned to 64; zeros, or a journal of the same sizes. It must
  // outlive this.
  UpdateJournal(std::byte* memory, std::size_t num_chunks, int num_threads);

  // Returns the last pass that has begun; 0: none. It may be complete.
  [[nodiscard]] std::uint64_t last_pass() const { return pass_->load(std::memory_order_relaxed); }

  // Updates the elements [begin, end) of a group, in ascending order, with `state.undo`.
  using Update = std::function<void(const GroupState& state, std::size_t begin, std::size_t end)>;

  // Calls update() for what is not updated yet in this pass, spread over the team by chunks. If `pass` is last_pass(),
  // goes on where a process that died has stopped. `pass`: a number above 0 that stands for this group in this step.
  // REQUIRES: the team has no more threads than the journal.
  void run(std::uint64_t pass, const GroupState& state, std::size_t chunk_elements, ThreadTeam& team,
           const Update& update);

 private:
  struct Chunk {
    std::uint64_t number = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  // Updates a chunk from element `begin` on, and marks it as complete.
  void finish(UndoSlot& slot, const Chunk& chunk, std::size_t begin, const GroupState& state, const Update& update);
  [[nodiscard]] bool is_complete(std::uint64_t chunk, std::uint64_t pass) const {
    return marks_[chunk].load(std::memory_order_relaxed) == pass;
  }

  std::atomic<std::uint64_t>* pass_;
  std::atomic<std::uint64_t>* marks_;  // by chunk: the last pass in which it was completed
  UndoSlot* slots_;                    // by thread
  const std::size_t num_chunks_;
  const int num_threads_;
};

}  // namespace rp
