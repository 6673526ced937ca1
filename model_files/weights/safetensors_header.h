// model_files/weights/safetensors_header.h
// The JSON header of a safetensors file: what it must look like.
//
// Stricter than the reference implementation where a file could mean two things to two readers:
// - no key twice, also not after unescaping; no keys but dtype, shape, data_offsets and __metadata__;
// - names are printable ASCII without slashes, at most 1024 bytes (parameter names of every known model are);
// - at most 64 dimensions of at most 2^48 each, products checked; the formats of common/dtype.h only;
// - tensors cover the data from its first to its last byte, without hole, overlap or trailing bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"

namespace rp {

// One tensor of a file.
struct TensorInfo {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;  // row-major; empty for a scalar
  std::uint64_t offset = 0;         // of the first byte, from the beginning of the data
  std::uint64_t bytes = 0;
};

using TensorMap = std::map<std::string, TensorInfo, std::less<>>;

// "[576, 1536]"
[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);

// Reads a header (without its length word) that belongs to `data_bytes` bytes of data. Takes time and memory
// proportional to the header whatever it says. Throws rp::Error (kBadInput) naming `file`, the tensor and the rule.
[[nodiscard]] TensorMap parse_safetensors_header(const std::filesystem::path& file, std::string_view header,
                                                 std::uint64_t data_bytes);

}  // namespace rp
