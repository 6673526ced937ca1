#include "common/printable.h"

#include <array>
#include <cstdio>

namespace rp {

void append_escaped(std::string& text, char byte) {
  std::array<char, 5> code{};
  std::snprintf(code.data(), code.size(), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  text += code.data();
}

std::string printable(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      append_escaped(result, text[i]);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F in UTF-8 are control characters, too
      append_escaped(result, text[i]);
      append_escaped(result, text[++i]);
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace rp
