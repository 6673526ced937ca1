// train/number_text.h
// Numbers as a person reads them.
#pragma once

#include <cstdint>
#include <string>

namespace rp {

// "134,515,008".
[[nodiscard]] inline std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::ptrdiff_t place = static_cast<std::ptrdiff_t>(text.size()) - 3; place > (number < 0 ? 1 : 0); place -= 3) {
    text.insert(static_cast<std::size_t>(place), 1, ',');
  }
  return text;
}

[[nodiscard]] inline std::string grouped(std::uint64_t number) { return grouped(static_cast<std::int64_t>(number)); }

}  // namespace rp
