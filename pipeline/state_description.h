// pipeline/state_description.h
// What a saved state says of itself: its state.json, and the list of its checksums. docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/checked_files/checksum.h"
#include "coordinator/updates/step_request.h"

namespace rp {

inline constexpr const char* kStateDescriptionFile = "state.json";
inline constexpr const char* kStateTensorsFile = "state.safetensors";
inline constexpr ChecksumKind kStateChecksums = ChecksumKind::kXxh128;

// The contents of a state.json.
struct StateDescription {
  std::uint64_t step = 0;
  std::uint64_t round = 0;  // rounds of training up to this step
  UpdateHistory updates;
  std::string dtype;  // of the model's weights
  int rounds_per_step = 1;
  bool asynchronous = false;
  std::string user_data;

  // The text of its file.
  [[nodiscard]] std::string text() const;

  // The text of the file `path`. Throws rp::Error (kBadInput).
  static StateDescription parse(const std::filesystem::path& path, const std::string& text);
  // Reads that of a directory. Throws rp::Error (kBadInput) where there is none, or it does not have its checksum.
  static StateDescription read(const std::filesystem::path& directory);
};

// The list of a state, which names its two other files and no more. Throws rp::Error (kBadInput).
[[nodiscard]] ChecksumList read_state_checksums(const std::filesystem::path& directory);

}  // namespace rp
