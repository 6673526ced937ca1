// common/printable.h
// Text from elsewhere, fit for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace rp {

// The same text with control characters as \x1b, say, but for the ends of lines and tabs: a file's name or a layer's
// message may not move the cursor or set the window's title.
[[nodiscard]] std::string printable(std::string_view text);

// Appends a byte as "\x1b".
void append_escaped(std::string& text, char byte);

}  // namespace rp
