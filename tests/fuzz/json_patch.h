// tests/fuzz/json_patch.h
// Inputs that change a JSON text which the program writes itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/fuzz/reading.h"

namespace rp::fuzz {

// An input that is a JSON object changes `base` (RFC 7386), so that `{}` is a good one in every version of the format;
// others are read as they are.
inline std::string patched(const std::string& base, const std::uint8_t* data, std::size_t size) {
  using nlohmann::json;
  const std::string text(text_of(data, size));
  const json patch = json::parse(text, nullptr, false);
  if (!patch.is_object()) return text;
  json whole = json::parse(base);
  whole.merge_patch(patch);
  return whole.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace rp::fuzz
