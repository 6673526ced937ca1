#include "train/output/wrapped_text.h"

#include <sstream>
#include <utility>

namespace rp {

std::string wrapped(std::string first, const std::string& text, std::size_t indent, std::size_t columns) {
  std::string result;
  std::string line = std::move(first);
  bool is_empty = true;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!is_empty && line.size() + 1 + word.size() > columns) {
      result += line + "\n";
      line.assign(indent, ' ');
      is_empty = true;
    }
    line += (is_empty ? "" : " ") + word;
    is_empty = false;
  }
  return result + line + "\n";
}

}  // namespace rp
