#include "common/bad_input.h"

#include <array>
#include <cstdio>

namespace rp {

std::string quoted_name(std::string_view name) {
  constexpr std::size_t kLongest = 80;
  std::string text = "'";
  for (const char c : name.substr(0, kLongest)) {
    if (c >= ' ' && c <= '~') {
      text += c;
    } else {
      std::array<char, 5> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      text += escape.data();
    }
  }
  return text + (name.size() > kLongest ? "…'" : "'");
}

}  // namespace rp
