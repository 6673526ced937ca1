#include "hoststore/memory/range_lock.h"

#include <fcntl.h>

#include <cerrno>
#include <string>

#include "common/check.h"

namespace rp {

namespace {

// Takes a lock with `type` F_WRLCK, or releases one with F_UNLCK. Returns false, with errno set, on
// failure.
bool set_lock(int fd, short type, std::uint64_t offset, std::uint64_t bytes) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = static_cast<off_t>(bytes);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

}  // namespace

RangeLock RangeLock::try_take(int fd, std::uint64_t offset, std::uint64_t bytes) {
  RP_ASSERT(bytes > 0);
  RangeLock lock;
  UniqueFd file(open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return lock;
  if (set_lock(file.get(), F_WRLCK, offset, bytes)) {
    lock.file_ = std::move(file);
  } else {
    lock.is_busy_ = errno == EAGAIN || errno == EACCES;
  }
  return lock;
}

RangeLock::~RangeLock() {
  if (file_) (void)set_lock(file_.get(), F_UNLCK, 0, 0);  // the whole file
}

}  // namespace rp
