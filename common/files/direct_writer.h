// common/files/direct_writer.h
// Writes a large file past the page cache, where the file system lets us.
//
// Through the page cache the same file costs the processor several times as much (docs/design/checkpoints.md), which is
// wasted on what nobody reads soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rp {

// Gathers what is written to a descriptor in a buffer of whole blocks. Functions return an errno, or 0.
class DirectWriter {
 public:
  // From the beginning of an empty file. Goes through the page cache, with the same buffer, where the file system takes
  // no direct writes.
  explicit DirectWriter(int fd);
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  [[nodiscard]] int write(const void* data, std::size_t bytes);
  // Writes what is still in the buffer. Nothing may be written after it.
  [[nodiscard]] int finish();

  // Whether the file system takes direct writes, as far as is known.
  [[nodiscard]] bool is_direct() const { return is_direct_; }

 private:
  struct Free {
    void operator()(std::byte* buffer) const;
  };

  // Writes the first `bytes` of the buffer.
  [[nodiscard]] int put(std::size_t bytes);
  void leave_direct();

  const int fd_;
  std::unique_ptr<std::byte, Free> buffer_;
  std::size_t filled_ = 0;
  bool is_direct_ = false;
};

}  // namespace rp
