// tests/model_files/safetensors_bytes.h
// Builds the bytes of valid and invalid safetensors files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rp {

inline std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// Returns the length, the header and `data_bytes` bytes 0, 1, 2, …
inline std::string safetensors_bytes(std::string_view header, std::size_t data_bytes) {
  std::string bytes = little_endian(header.size()) + std::string(header);
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
  return bytes;
}

// Returns an entry of a header: "name":{"dtype":…,"shape":…,"data_offsets":…}. The values are given
// as JSON.
inline std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::string_view offsets) {
  std::string text = "\"";
  text.append(name).append("\":{\"dtype\":\"").append(dtype).append("\",\"shape\":").append(shape);
  return text.append(",\"data_offsets\":").append(offsets).append("}");
}

}  // namespace rp
