// pipeline/state_files.h
// Reads the tensors of a saved state, which may be in several files: each node of a run writes what
// it owns. docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model_files/weights/safetensors.h"

namespace rp {

// Returns the name of a tensor in a file: its own if the file contains all of it, otherwise that
// with the first element appended.
[[nodiscard]] std::string state_part_name(const std::string& tensor, bool is_whole, std::uint64_t begin);

class StateFiles {
 public:
  // Opens the files that the state's list of checksums names. Throws rp::Error (kBadInput).
  static StateFiles open(const std::filesystem::path& directory);

  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return files_; }

  struct Tensor {
    std::string name;
    DType dtype = DType::kFloat32;
    std::vector<std::int64_t> shape;
  };
  // Throws rp::Error (kBadInput) if the files do not contain exactly these tensors.
  void check(const std::vector<Tensor>& tensors) const;

  // Reads elements of a tensor, counted from its first one. REQUIRES: check() has succeeded with it.
  void read(const std::string& tensor, std::uint64_t begin, std::uint64_t num_elements, void* destination) const;

 private:
  struct Part {
    const SafetensorsFile* file = nullptr;
    std::string name;  // in the file
    std::uint64_t num_elements = 0;
  };

  [[nodiscard]] const std::filesystem::path& place() const {
    return files_.size() == 1 ? files_.front().path() : directory_;
  }

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::map<std::uint64_t, Part>> parts_;  // by tensor, then by first element
};

}  // namespace rp
