// train/output/event_file.h
// Events as TensorBoard reads them: OUTPUT/events.out.tfevents.*, one file for each start of a run.
//
// Format: records of TFRecord (length, checksum, data, checksum; checksums are masked CRC-32C), each an Event message
// of TensorFlow's event.proto, written here by hand: its four fields are not worth a library of protocol buffers.
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
  // Makes a new file in `directory`. Readers forget what earlier files say of steps after `last_step`. Throws rp::Error
  // (kOutputFailed).
  static EventFile create(const std::filesystem::path& directory, std::int64_t last_step);

  // Numbers of one step by name, as "train/loss"; there for every reader as soon as this returns. Throws rp::Error
  // (kOutputFailed).
  void add(std::int64_t step, const std::vector<std::pair<const char*, double>>& values);

 private:
  explicit EventFile(KeptFile file) : file_(std::move(file)) {}
  void add_record(const std::string& event);

  KeptFile file_;
};

// CRC-32C (Castagnoli) as TFRecord has it: rotated, plus a constant.
[[nodiscard]] std::uint32_t masked_crc32c(const std::string& data);

}  // namespace rp
