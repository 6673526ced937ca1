// coordinator/updates/state_snapshot.h
// The masters and moments of one version of the weights, read by a saver that is slower than training.
//
// An update changes them in place. Before it does so it calls before_update(), which copies what the saver has not read
// yet: once per save and weight group at most. Copies take at most half of the memory that is free without
// them; beyond it the update waits for the saver.
//
// Two threads use it: the saver calls read_next(), the updates thread before_update(); either of them, or a third,
// close().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/mutex.h"

namespace rp {

class StateSnapshot {
 public:
  // One tensor to be saved, and the group that it belongs to.
  struct Part {
    std::uint32_t group = 0;
    std::span<const std::byte> memory;
  };

  // `parts`: in the order in which the saver reads them. Their memory must outlive this object. `free_bytes`: the
  // memory that is free now, beside the copies that are there. The updates thread asks before each copy.
  StateSnapshot(std::vector<Part> parts, std::function<std::uint64_t()> free_bytes);

  // Gives the bytes of the next part to `take`, piece by piece, and frees its copy. `take` may be slow: it holds up no
  // update but one of this part's group, for a piece. False if the snapshot was closed before the last piece. REQUIRES:
  // there is a next part.
  [[nodiscard]] bool read_next(const std::function<void(std::span<const std::byte>)>& take);

  // Nothing is read any more, but for a piece that is being taken: updates neither copy nor wait.
  void close();

  // Call before the group is changed; it may be when this returns. `on_wait` is called before each wait for
  // the saver, which ends with the piece or part that it reads.
  void before_update(std::uint32_t group, const std::function<void()>& on_wait);

  // The most bytes that were copied at once.
  [[nodiscard]] std::uint64_t peak_copied_bytes();

 private:
  struct State {
    Part part;
    std::unique_ptr<std::byte[]> copy;  // if the memory may have changed
  };

  // Copies a part that is not read yet, as soon as the limit lets it.
  void copy_part(std::size_t index, const std::function<void()>& on_wait) RP_REQUIRES(mutex_);
  [[nodiscard]] bool has_room(std::size_t bytes) RP_REQUIRES(mutex_);
  void wait(const std::function<void()>& on_wait) RP_REQUIRES(mutex_);
  void end_part() RP_REQUIRES(mutex_);

  enum class Reading { kNothing, kStore, kCopy };

  const std::function<std::uint64_t()> free_bytes_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<State> parts_ RP_GUARDED_BY(mutex_);
  std::size_t next_ RP_GUARDED_BY(mutex_) = 0;                 // parts before it are read
  Reading reading_ RP_GUARDED_BY(mutex_) = Reading::kNothing;  // what of the next part the saver is reading
  bool is_closed_ RP_GUARDED_BY(mutex_) = false;
  std::uint64_t copied_bytes_ RP_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_copied_bytes_ RP_GUARDED_BY(mutex_) = 0;
};

}  // namespace rp
