// model_files/weights/safetensors.h
// Reads one safetensors file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/input_file.h"
#include "model_files/weights/safetensors_header.h"

namespace rp {

// Longer headers are refused. 8 MiB describe about 70 000 tensors. (The format allows 100 MB.)
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = std::uint64_t{8} << 20;

// An open file whose header obeys all rules of safetensors_header.h. Several threads may read at
// once.
class SafetensorsFile {
 public:
  // Throws rp::Error (kBadInput) naming the file, the tensor and the rule that it breaks.
  static SafetensorsFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] unsigned permissions() const { return file_.permissions(); }
  [[nodiscard]] const TensorMap& tensors() const { return tensors_; }

  // Returns the names of the tensors in the order of their data.
  [[nodiscard]] std::vector<std::string> names_in_order() const;
  // Returns the header byte for byte, without the length in front of it. Throws rp::Error
  // (kBadInput) on a read error.
  [[nodiscard]] std::string header() const;

  // Throws rp::Error (kBadInput) if there is no tensor of this name.
  [[nodiscard]] const TensorInfo& tensor(std::string_view name) const;

  // Reads `bytes` bytes of the tensor, starting at its byte `first`. Throws rp::Error (kBadInput)
  // if there is no such tensor, on a read error, or if the file has become shorter.
  // REQUIRES: first + bytes <= tensor(name).bytes.
  void read(std::string_view name, void* destination, std::uint64_t bytes, std::uint64_t first = 0) const;

 private:
  SafetensorsFile(InputFile file, std::uint64_t data_offset, TensorMap tensors)
      : file_(std::move(file)), data_offset_(data_offset), tensors_(std::move(tensors)) {}

  InputFile file_;
  std::uint64_t data_offset_;
  TensorMap tensors_;
};

}  // namespace rp
