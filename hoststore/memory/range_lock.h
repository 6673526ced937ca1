// hoststore/memory/range_lock.h
// Keeps processes that share a memory file from doing the same work on the same bytes of it at the same time.
//
// A lock of the kernel's belongs to an open file description, and the processes of a run share those of the store's
// files, since their descriptors were handed over: on them a lock would exclude no process. So each lock opens the file
// again. The kernel releases the lock of a process that dies. Only those who ask for a lock are held off by one.
#pragma once

#include <cstdint>

#include "common/system/fd.h"

namespace rp {

// Holds a lock on a range of a file's bytes, or none. Move-only.
class RangeLock {
 public:
  // Tries to lock the bytes of the file behind `fd` for this object, and never waits. REQUIRES: bytes > 0.
  [[nodiscard]] static RangeLock try_take(int fd, std::uint64_t offset, std::uint64_t bytes);
  RangeLock(RangeLock&&) = default;
  RangeLock& operator=(RangeLock&&) = delete;
  // Releases it, also where a process that was forked meanwhile still has the description.
  ~RangeLock();

  // Another lock has some of the bytes. Otherwise this one has them, or cannot be had at all: where the file cannot be
  // opened again or knows no locks, there are none to respect.
  [[nodiscard]] bool is_busy() const { return is_busy_; }

 private:
  RangeLock() = default;

  UniqueFd file_;
  bool is_busy_ = false;
};

}  // namespace rp
