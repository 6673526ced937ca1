// common/files/input_file.h
// A file that somebody else wrote, opened for reading at any place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/system/fd.h"

namespace rp {

// Reads by pread, never by mmap: a file that shrinks while it is read is an error and not a SIGBUS. Reads may come
// from several threads at once.
class InputFile {
 public:
  // Throws rp::Error (kBadInput) if there is no such file, it cannot be read or is anything but a regular file (a
  // pipe or device could block for ever or never end).
  static InputFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // These two as they were at open().
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] unsigned permissions() const { return permissions_; }  // its mode, as 0640
  // Where the open file is, whatever links led there. Empty where the system does not tell.
  [[nodiscard]] std::filesystem::path real_path() const;

  // Reads exactly `bytes` from `offset` on. Throws rp::Error (kBadInput) on a read error, or if the file ends before.
  // REQUIRES: offset + bytes <= size().
  void read_at(std::uint64_t offset, void* destination, std::uint64_t bytes) const;

  // The whole file. Throws rp::Error (kBadInput) if it is longer than `max_bytes`.
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
