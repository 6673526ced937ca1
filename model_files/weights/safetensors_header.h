// model_files/weights/safetensors_header.h
// Parses and checks the JSON header of a safetensors file.
//
// It is stricter than the reference implementation in cases where two readers could interpret a
// file differently:
// - no duplicate keys, not even after unescaping; no keys except dtype, shape, data_offsets and
//   __metadata__;
// - names are printable ASCII without slashes, at most 1024 bytes, as the parameter names of all
//   known models are;
// - at most 64 dimensions of at most 2^48 each, with checked products; only the dtypes of
//   common/dtype.h;
// - tensors cover the data from its first to its last byte, without holes, overlaps or trailing
//   bytes.
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

// Returns the text of a shape, such as "[576, 1536]".
[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);

// Parses a header (without its length word) that belongs to `data_bytes` bytes of data. Time and
// memory are proportional to the header for any content. Throws rp::Error (kBadInput) naming
// `file`, the tensor and the rule.
[[nodiscard]] TensorMap parse_safetensors_header(const std::filesystem::path& file, std::string_view header,
                                                 std::uint64_t data_bytes);

}  // namespace rp
