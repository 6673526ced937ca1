// common/time_text.h
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rp {

// Reads a time such as "90s", "15m" or "2h" and returns seconds: at least 1, at most `most`. Returns nothing for any
// other text.
[[nodiscard]] inline std::optional<std::int64_t> seconds_of(std::string_view text, std::int64_t most) {
  if (text.empty()) return std::nullopt;
  const std::int64_t unit = text.back() == 's' ? 1 : text.back() == 'm' ? 60 : text.back() == 'h' ? 3600 : 0;
  std::int64_t number = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto [stop, failure] = std::from_chars(text.data(), end, number);
  if (unit == 0 || failure != std::errc{} || stop != end || number < 1 || number > most / unit) return std::nullopt;
  return number * unit;
}

}  // namespace rp
