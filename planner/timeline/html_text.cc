#include "planner/timeline/html_text.h"

#include <cstddef>

namespace rp {

namespace {

// Returns the number of bytes of the first character; 0 if the text does not begin with a valid
// character. Surrogates and overlong forms are invalid, as in XML.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text[i])); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t count = first >= 0xF0 && first < 0xF5   ? 4
                            : first >= 0xE0 && first < 0xF0 ? 3
                            : first >= 0xC2 && first < 0xE0 ? 2
                                                            : 0;
  if (count == 0 || text.size() < count) return 0;
  unsigned value = first & (0x7FU >> count);
  for (std::size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
    value = (value << 6U) | (byte(i) & 0x3FU);
  }
  const unsigned least = count == 2 ? 0x80 : count == 3 ? 0x800 : 0x10000;
  const bool is_character =
      value >= least && value < 0x110000 && !(value >= 0xD800 && value < 0xE000) && (value & 0xFFFEU) != 0xFFFE;
  return is_character ? count : 0;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const char c = text.front();
    if (bytes == 0) {
      out += '?';
    } else if (bytes > 1) {
      out += text.substr(0, bytes);
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += c == '\n' || (c >= ' ' && c != '\x7f') ? c : ' ';
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return out;
}

}  // namespace rp
