// tests/model_files/safetensors_bytes.h
// The bytes of safetensors files, good and bad ones.
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

// Length, header and `data_bytes` bytes 0, 1, 2, …
inline std::string safetensors_bytes(std::string_view header, std::size_t data_bytes) {
  std::string bytes = little_endian(header.size()) + std::string(header);
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
  return bytes;
}

// A header's entry: "name":{"dtype":…,"shape":…,"data_offsets":…}, with the JSON of each given.
inline std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::string_view offsets) {
  std::string text = "\"";
  text.append(name).append("\":{\"dtype\":\"").append(dtype).append("\",\"shape\":").append(shape);
  return text.append(",\"data_offsets\":").append(offsets).append("}");
}

}  // namespace rp
