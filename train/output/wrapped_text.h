// train/output/wrapped_text.h
// Text in lines that break between words.
#pragma once

#include <cstddef>
#include <string>

namespace rp {

// The words of `text` behind `first`, in lines of at most `columns`, unless a word is longer. Lines but the first one
// begin with `indent` spaces; all end with a newline.
[[nodiscard]] std::string wrapped(std::string first, const std::string& text, std::size_t indent,
                                  std::size_t columns = 80);

}  // namespace rp
