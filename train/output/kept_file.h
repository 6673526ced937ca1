// train/output/kept_file.h
// A file of the output directory that grows with the run: metrics, events, the log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/system/fd.h"

namespace rp {

// An open file to which whole records are appended. What was appended is there for every reader.
class KeptFile {
 public:
  // Makes the file, or opens it if it is there, behind its content. Throws rp::Error (kOutputFailed), also for what is
  // no regular file.
  static KeptFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  // Throws rp::Error (kOutputFailed); the file then ends with the record before.
  void append(const std::string& record);
  // Cuts the file. Throws rp::Error (kOutputFailed).
  void truncate(std::int64_t bytes);

 private:
  KeptFile(std::filesystem::path path, UniqueFd fd, std::int64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_;
};

}  // namespace rp
