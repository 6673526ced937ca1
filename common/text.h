// common/text.h
// Text for people: joined pieces, byte counts with units, the name that was probably meant.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace rp {

// The pieces one after the other, as `<<` prints them.
template <typename... Pieces>
std::string cat(const Pieces&... pieces) {
  std::ostringstream out;
  (out << ... << pieces);
  return out.str();
}

// "1.50 GiB", "12 bytes": three significant digits, binary units.
std::string bytes_text(std::uint64_t bytes);

inline constexpr double kGiB = 1073741824;  // bytes

// "12.50" for 12.5 and 2 places.
std::string decimal(double value, int places);

// "768G", "1.5T", "64GiB", "512M": powers of 1024. Nothing for what is no size.
std::optional<std::uint64_t> bytes_of(const std::string& text);

// The text of an errno value, as "No space left on device".
std::string errno_text(int error_number);

// "a, b, c"; of more than `max` names the first ones and their number: "a, b, ... (14 in all)".
std::string list_of(const std::vector<std::string>& names, std::size_t max = SIZE_MAX);

// The fewest insertions, deletions and replacements of a byte that turn one into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `word` by edit distance, or "" if none is near enough to be a slip of the fingers.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

// " (did you mean --x?)", or "" where nearest_name() finds none.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace rp
