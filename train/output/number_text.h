// train/output/number_text.h
// Formats numbers for people to read.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

#include "common/text.h"

namespace rp {

// Returns the number with separators: "134,515,008".
[[nodiscard]] inline std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::ptrdiff_t place = static_cast<std::ptrdiff_t>(text.size()) - 3; place > (number < 0 ? 1 : 0); place -= 3) {
    text.insert(static_cast<std::size_t>(place), 1, ',');
  }
  return text;
}

[[nodiscard]] inline std::string grouped(std::uint64_t number) { return grouped(static_cast<std::int64_t>(number)); }

// Returns the number with its noun: "1 step", "2,000 steps".
[[nodiscard]] inline std::string counted(std::int64_t number, const char* one, const char* many) {
  return cat(grouped(number), " ", number == 1 ? one : many);
}

// Formats as printf() does. REQUIRES: the result has at most 199 characters; the rest is cut off.
template <typename... Values>
[[nodiscard]] std::string formatted(const char* format, Values... values) {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

}  // namespace rp
