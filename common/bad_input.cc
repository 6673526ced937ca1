#include "common/bad_input.h"

#include "common/printable.h"

namespace rp {

std::string quoted_name(std::string_view name) {
  constexpr std::size_t kLongest = 80;
  std::string text = "'";
  for (const char c : name.substr(0, kLongest)) {
    if (c >= ' ' && c <= '~') {
      text += c;
    } else {
      append_escaped(text, c);
    }
  }
  return text + (name.size() > kLongest ? "…'" : "'");
}

}  // namespace rp
