// common/printable.h
// Makes text from other programs safe to print to a terminal.
#pragma once

#include <string>
#include <string_view>

namespace rp {

// Returns the text with control characters, except newlines and tabs, escaped as in "\x1b". So a
// file's name or a layer's message cannot move the cursor or set the window's title.
[[nodiscard]] std::string printable(std::string_view text);

// Appends a byte as "\x1b".
void append_escaped(std::string& text, char byte);

}  // namespace rp
