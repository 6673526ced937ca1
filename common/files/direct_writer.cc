#include "common/files/direct_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace rp {
namespace {

// The addresses, sizes and offsets of direct writes must be multiples of a block; 4 KiB suffice for
// every file system.
constexpr std::size_t kBlockBytes = 4096;
constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

}  // namespace

void DirectWriter::Free::operator()(std::byte* buffer) const { std::free(buffer); }

DirectWriter::DirectWriter(int fd)
    : fd_(fd), buffer_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kBufferBytes))) {
  if (buffer_ == nullptr) throw std::bad_alloc();
  const int flags = fcntl(fd_, F_GETFL);
  is_direct_ = flags >= 0 && fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
}

int DirectWriter::write(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kBufferBytes - filled_);
    std::memcpy(buffer_.get() + filled_, from, part);
    filled_ += part;
    from += part;
    bytes -= part;
    if (filled_ < kBufferBytes) continue;
    if (const int error = put(kBufferBytes); error != 0) return error;
    filled_ = 0;
  }
  return 0;
}

int DirectWriter::finish() {
  const std::size_t whole = filled_ / kBlockBytes * kBlockBytes;
  if (const int error = put(whole); error != 0) return error;
  leave_direct();
  std::memmove(buffer_.get(), buffer_.get() + whole, filled_ - whole);
  return put(filled_ - whole);
}

int DirectWriter::put(std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t put = ::write(fd_, buffer_.get() + done, bytes - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && is_direct_) {  // the flag was accepted, but the write was not
      leave_direct();
      continue;
    }
    if (put < 0) return errno;
    done += static_cast<std::size_t>(put);
    if (done % kBlockBytes != 0) leave_direct();  // a short write: the file no longer ends at a block boundary
  }
  return 0;
}

void DirectWriter::leave_direct() {
  if (!is_direct_) return;
  is_direct_ = false;
  const int flags = fcntl(fd_, F_GETFL);
  if (flags >= 0) (void)fcntl(fd_, F_SETFL, flags & ~O_DIRECT);
}

}  // namespace rp
