// common/text.h
// Makes text for people: joined pieces, byte counts with units, and the name that was probably
// meant.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace rp {

// Returns the pieces one after the other, as `<<` prints them.
template <typename... Pieces>
std::string cat(const Pieces&... pieces) {
  std::ostringstream out;
  (out << ... << pieces);
  return out.str();
}

// Returns, for example, "1.50 GiB" or "12 bytes": three significant digits, binary units.
std::string bytes_text(std::uint64_t bytes);

inline constexpr double kGiB = 1073741824;  // bytes

// Returns a number with `places` decimal places, for example "12.50".
std::string decimal(double value, int places);

// Parses "768G", "1.5T", "64GiB" or "512M", for example, with powers of 1024. Returns nothing if
// the text is not a size.
std::optional<std::uint64_t> bytes_of(const std::string& text);

// Returns the text of an errno value, for example "No space left on device".
std::string errno_text(int error_number);

// Returns "a, b, c". If there are more than `max` names, returns the first ones and the number of
// all: "a, b, ... (14 in all)".
std::string list_of(const std::vector<std::string>& names, std::size_t max = SIZE_MAX);

// Returns the minimum number of insertions, deletions and replacements of a byte that turn one text
// into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the candidate nearest to `word` by edit distance, or "" if none is near enough to be a
// typing error.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

// Returns " (did you mean --x?)", or "" if nearest_name() finds no name.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace rp
