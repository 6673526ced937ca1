// pipeline/state_description.h
// Describes a saved state: the contents of its state.json, and the list of its checksums.
// docs/formats/checkpoint.md.
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
  std::uint64_t round = 0;  // number of training rounds up to this step
  UpdateHistory updates;
  std::string dtype;  // dtype of the model's weights
  int rounds_per_step = 1;
  bool asynchronous = false;
  std::string user_data;

  // Returns the text of the file.
  [[nodiscard]] std::string text() const;

  // Parses `text`, which is the content of the file `path`. Throws rp::Error (kBadInput).
  static StateDescription parse(const std::filesystem::path& path, const std::string& text);
  // Reads the description of the state in a directory. Throws rp::Error (kBadInput) if there is
  // none, or if it does not match its checksum.
  static StateDescription read(const std::filesystem::path& directory);
};

// Returns the name of the file that a node writes: state.safetensors, or state-2-of-4.safetensors.
[[nodiscard]] std::string state_file_name(int node, int num_nodes);

// Reads the checksum list of a state, which must contain exactly its other files: the description,
// and the tensors of one node or of each node. Throws rp::Error (kBadInput).
[[nodiscard]] ChecksumList read_state_checksums(const std::filesystem::path& directory);

}  // namespace rp
