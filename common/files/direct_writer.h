// common/files/direct_writer.h
// Writes a large file without the page cache, if the file system allows it.
//
// Writing the same file through the page cache needs several times as much processor time
// (docs/design/checkpoints.md), which is wasted if no process reads the file soon.
#pragma once

#include <cstddef>
#include <memory>

namespace rp {

// Collects the data for a descriptor in a buffer of whole blocks. Functions return 0 or an errno.
class DirectWriter {
 public:
  // Begins at the start of an empty file. If the file system does not accept direct writes, the
  // data goes through the page cache, with the same buffer.
  explicit DirectWriter(int fd);
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  [[nodiscard]] int write(const void* data, std::size_t bytes);
  // Writes what is still in the buffer. Nothing may be written after this call.
  [[nodiscard]] int finish();

  // Returns whether the file system accepts direct writes, as known so far.
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
