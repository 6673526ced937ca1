#include "common/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iomanip>
#include <numeric>

namespace rp {

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  const int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, value, kUnits[unit]);
  return text.data();
}

std::string decimal(double value, int places) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(places) << value;
  return out.str();
}

std::optional<std::uint64_t> bytes_of(const std::string& text) {
  static constexpr std::string_view kUnits = "KMGT";
  const std::size_t end = text.find_first_not_of("0123456789.");
  if (end == 0 || end == std::string::npos) return std::nullopt;
  const std::string unit = text.substr(end);
  const std::size_t power = kUnits.find(unit.front());
  if (power == std::string_view::npos || (unit.size() > 1 && unit.substr(1) != "iB" && unit.substr(1) != "B"))
    return std::nullopt;
  double bytes = 0;
  const auto result = std::from_chars(text.data(), text.data() + end, bytes);
  if (result.ec != std::errc{} || result.ptr != text.data() + end || !(bytes > 0) || bytes > 1e6) return std::nullopt;
  for (std::size_t i = 0; i <= power; ++i) bytes *= 1024;
  return static_cast<std::uint64_t>(bytes);
}

std::string errno_text(int error_number) { return std::strerror(error_number); }

std::string list_of(const std::vector<std::string>& names, std::size_t max) {
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), max); ++i) list += (i == 0 ? "" : ", ") + names[i];
  return names.size() > max ? cat(list, ", ... (", names.size(), " in all)") : list;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = above;
    }
  }
  return row.back();
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // The difference in length is a lower bound of the distance. Checking it first avoids the
    // comparison with a word of 64 KiB.
    if (std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size()) >= best_distance) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string name = nearest_name(word, candidates);
  return name.empty() ? "" : " (did you mean " + name + "?)";
}

}  // namespace rp
