// tests/planner/well_formed.h
// Reads a page as strictly as an XML parser does, and counts its elements.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rp::test {

struct PageContent {
  std::map<std::string, int> elements;  // by name
  std::map<std::string, int> classes;   // by the first class of each rect, such as "F"
  std::string text;                     // outside of style and script; includes titles
};

// Fails the test if tags do not match, an attribute is not quoted, or a character is not escaped.
inline PageContent read_page(std::string_view page) {
  PageContent content;
  constexpr std::string_view kDoctype = "<!DOCTYPE html>\n";
  EXPECT_EQ(page.substr(0, kDoctype.size()), kDoctype);
  page.remove_prefix(kDoctype.size());
  std::vector<std::string> open;
  while (!page.empty()) {
    if (page.front() != '<') {
      const std::string_view text = page.substr(0, page.find('<'));
      for (std::size_t at = text.find('&'); at != std::string_view::npos; at = text.find('&', at + 1)) {
        const std::size_t end = text.find(';', at);
        EXPECT_TRUE(end != std::string_view::npos && end - at <= 6) << text.substr(at, 20);
      }
      if (open.empty() || (open.back() != "style" && open.back() != "script")) content.text += text;
      page.remove_prefix(text.size());
      continue;
    }
    const std::size_t end = page.find('>');
    if (end == std::string_view::npos) {
      ADD_FAILURE() << "a tag without an end: " << page.substr(0, 40);
      return content;
    }
    std::string_view tag = page.substr(1, end - 1);
    page.remove_prefix(end + 1);
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) {
        ADD_FAILURE() << "</" << tag.substr(1) << "> ends " << (open.empty() ? "nothing" : open.back());
        return content;
      }
      open.pop_back();
      continue;
    }
    const bool is_empty = tag.back() == '/';
    if (is_empty) tag.remove_suffix(1);
    const std::string name(tag.substr(0, tag.find_first_of(" \n")));
    ++content.elements[name];
    if (!is_empty) open.push_back(name);
    std::string_view rest = tag.substr(name.size());
    while (rest.find_first_not_of(" \n") != std::string_view::npos) {
      rest.remove_prefix(rest.find_first_not_of(" \n"));
      const std::size_t equals = rest.find("=\""), close = rest.find('"', equals + 2);
      if (equals == std::string_view::npos || close == std::string_view::npos) {
        ADD_FAILURE() << "an attribute without a quoted value: " << tag;
        return content;
      }
      const std::string_view value = rest.substr(equals + 2, close - equals - 2);
      EXPECT_EQ(value.find('<'), std::string_view::npos) << tag;
      if (name == "rect" && rest.substr(0, equals) == "class")
        ++content.classes[std::string(value.substr(0, value.find(' ')))];
      rest.remove_prefix(close + 1);
    }
  }
  EXPECT_TRUE(open.empty()) << open.back() << " is not closed";
  return content;
}

}  // namespace rp::test
