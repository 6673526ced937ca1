// train/output/event_file.h
// Writes events in TensorBoard's format: OUTPUT/events.out.tfevents.*, one file for each start of a
// run.
//
// Format: records of TFRecord (length, checksum, data, checksum; checksums are masked CRC-32C).
// Each record is an Event message of TensorFlow's event.proto. It is encoded by hand, because its
// four fields do not justify a dependency on a protocol buffer library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "train/output/kept_file.h"

namespace rp {

class EventFile {
 public:
  // Creates a new file in `directory`. Readers then discard steps after `last_step` that earlier
  // files contain. Throws rp::Error (kOutputFailed).
  static EventFile create(const std::filesystem::path& directory, std::int64_t last_step);

  // Adds numbers of one step by name, e.g. "train/loss". They are visible to every reader when this
  // returns. Throws rp::Error (kOutputFailed).
  void add(std::int64_t step, const std::vector<std::pair<const char*, double>>& values);

 private:
  explicit EventFile(KeptFile file) : file_(std::move(file)) {}
  void add_record(const std::string& event);

  KeptFile file_;
};

// Returns the CRC-32C (Castagnoli) of `data` as TFRecord masks it: rotated, plus a constant.
[[nodiscard]] std::uint32_t masked_crc32c(const std::string& data);

}  // namespace rp
