// planner/timeline/html_text.h
// Escapes untrusted text for HTML.
#pragma once

#include <string>
#include <string_view>

namespace rp {

// Returns the text in a form that is safe in the content and the quoted attributes of an element.
// Markup is escaped, control characters except newlines become spaces, and bytes that are not UTF-8
// become "?".
[[nodiscard]] std::string html_text(std::string_view text);

}  // namespace rp
