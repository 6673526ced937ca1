// common/files/input_file.h
// Reads a file that another program wrote, at any offset.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/system/fd.h"

namespace rp {

// A file that is open for reading. Reads with pread, never with mmap, so that a file that shrinks
// while it is read causes an error and not a SIGBUS. Several threads may read at the same time.
class InputFile {
 public:
  // Throws rp::Error: kBadInput if the file does not exist, cannot be read, or is not a regular
  // file (a pipe or device could block for ever or never end); kNoResource if no further file can
  // be opened or no memory is left.
  static InputFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // size() and permissions() return the values at the time of open().
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] unsigned permissions() const { return permissions_; }  // the file's mode, for example 0640
  // Returns the path of the open file, with all links resolved; empty if the system does not report
  // it.
  [[nodiscard]] std::filesystem::path real_path() const;

  // Reads exactly `bytes` bytes from `offset` on. Throws rp::Error (kBadInput) on a read error, or
  // if the file has become shorter. REQUIRES: offset + bytes <= size().
  void read_at(std::uint64_t offset, void* destination, std::uint64_t bytes) const;

  // Returns the whole file. Throws rp::Error (kBadInput) if it is longer than `max_bytes`.
  [[nodiscard]] std::string read_all(std::uint64_t max_bytes) const;

 private:
  InputFile(std::filesystem::path path, UniqueFd fd, std::uint64_t size, unsigned permissions)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size), permissions_(permissions) {}

  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t size_;
  unsigned permissions_;
};

}  // namespace rp
