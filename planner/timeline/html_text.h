// planner/timeline/html_text.h
// Text that somebody else chose, inside HTML.
#pragma once

#include <string>
#include <string_view>

namespace rp {

// Fit for the content and the quoted attributes of an element: markup is escaped; control characters become spaces (a
// newline stays), and what is not UTF-8 becomes "?".
[[nodiscard]] std::string html_text(std::string_view text);

}  // namespace rp
