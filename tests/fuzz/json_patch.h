// tests/fuzz/json_patch.h
// Inputs that patch a JSON text that the program itself writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/fuzz/reading.h"

namespace rp::fuzz {

// If the input is a JSON object, returns `base` changed by it (RFC 7386), so that `{}` is valid in
// every version of the format. Other inputs are returned unchanged.
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
