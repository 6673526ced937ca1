// train/output/kept_file.h
// Appends to files of the output directory that grow with the run: metrics, events, the log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/system/fd.h"

namespace rp {

// An open file to which whole records are appended. A record is visible to every reader once
// append() returns.
class KeptFile {
 public:
  // Creates the file, or opens an existing one to append to it. Throws rp::Error (kOutputFailed),
  // also if the path is not a regular file.
  static KeptFile open(const std::filesystem::path& path);

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  // Throws rp::Error (kOutputFailed); the file then ends with the previous record.
  void append(const std::string& record);
  // Shortens the file to `bytes`. Throws rp::Error (kOutputFailed).
  void truncate(std::int64_t bytes);

 private:
  KeptFile(std::filesystem::path path, UniqueFd fd, std::int64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_;
};

}  // namespace rp
