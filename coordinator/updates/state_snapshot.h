// coordinator/updates/state_snapshot.h
// Preserves the masters and moments of one version of the weights for a saver that is slower than
// training.
//
// An update changes them in place. Before it does, it calls before_update(), which copies the parts
// that the saver has not read yet: at most once per save and weight group. Copies occupy at most
// half of the memory that is free without them; beyond that, the update waits for the saver.
//
// Two threads use it: the saver calls read_next(), and the updates thread calls before_update().
// Either of them, or a third thread, may call close().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "hoststore/ids.h"

namespace rp {

class StateSnapshot {
 public:
  // One tensor to be saved, and the group that it belongs to, if any.
  struct Part {
    std::optional<GroupId> group{};
    std::span<const std::byte> memory;
  };

  // `parts`: in the order in which the saver reads them. Their memory must outlive this object.
  // `free_bytes`: returns the memory that is free now, in addition to the existing copies. The
  // updates thread calls it before each copy.
  StateSnapshot(const std::vector<Part>& parts, std::function<std::uint64_t()> free_bytes);

  // Passes the bytes of the next part to `take`, piece by piece, and frees the part's copy. `take`
  // may be slow: it delays only updates of this part's group, and these only until the piece is
  // taken. Returns false if the snapshot was closed before the last piece. REQUIRES: there is a
  // next part.
  [[nodiscard]] bool read_next(const std::function<void(std::span<const std::byte>)>& take);

  // Ends the reading, except of a piece that is being taken. Updates neither copy nor wait
  // afterwards.
  void close();

  // Must be called before the group is changed; the group may be changed when it returns. `on_wait`
  // is called before each wait for the saver; a wait ends when the saver has read its current piece
  // or part.
  void before_update(GroupId group, const std::function<void()>& on_wait);

  // Returns the maximum size of all copies at a time.
  [[nodiscard]] std::uint64_t peak_copied_bytes();

 private:
  struct State {
    Part part;
    std::unique_ptr<std::byte[]> copy;  // set if the memory may have changed
  };

  // Copies a part that is not read yet, as soon as the limit permits it.
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
  Reading reading_ RP_GUARDED_BY(mutex_) = Reading::kNothing;  // from where the saver is reading the next part
  bool is_closed_ RP_GUARDED_BY(mutex_) = false;
  std::uint64_t copied_bytes_ RP_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_copied_bytes_ RP_GUARDED_BY(mutex_) = 0;
};

}  // namespace rp
