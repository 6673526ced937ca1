// hoststore/memory/range_lock.h
// Keeps processes that share a memory file from doing the same work on the same bytes of it at the same time.
//
// A kernel lock belongs to an open file description. The processes of a run share the descriptions
// of the store's files, because the descriptors were handed over to them, so a lock on those would
// exclude no process. Therefore each lock opens the file again. The kernel releases the lock of a
// process that dies. The locks are advisory: they affect only callers that try to take one.
#pragma once

#include <cstdint>

#include "common/system/fd.h"

namespace rp {

// Holds a lock on a range of a file's bytes, or none. Move-only.
class RangeLock {
 public:
  // Tries to lock these bytes of the file behind `fd`. Never blocks. REQUIRES: bytes > 0.
  [[nodiscard]] static RangeLock try_take(int fd, std::uint64_t offset, std::uint64_t bytes);
  RangeLock(RangeLock&&) = default;
  RangeLock& operator=(RangeLock&&) = delete;
  // Releases the lock, even if a process that was forked in the meantime still has the file
  // description.
  ~RangeLock();

  // True if another lock covers some of the bytes. If false, this object holds the lock, or no lock
  // can be taken at all because the file cannot be opened again or does not support locks; then
  // there is no other lock to respect.
  [[nodiscard]] bool is_busy() const { return is_busy_; }

 private:
  RangeLock() = default;

  UniqueFd file_;
  bool is_busy_ = false;
};

}  // namespace rp
