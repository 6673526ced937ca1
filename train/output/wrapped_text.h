// train/output/wrapped_text.h
// Breaks text into lines between words.
#pragma once

#include <cstddef>
#include <string>

namespace rp {

// Returns the words of `text` after `first`, in lines of at most `columns`, unless a word is
// longer. All lines except the first begin with `indent` spaces; all end with a newline.
[[nodiscard]] std::string wrapped(std::string first, const std::string& text, std::size_t indent,
                                  std::size_t columns = 80);

}  // namespace rp
