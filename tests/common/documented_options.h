// tests/common/documented_options.h
// Compares a table in a page of the documentation, such as that of options, with the one that the program is made from.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace rp {

// Expects that the lines of docs/`page` that begin with `begin`, by default options, are `rows`. With the variable
// RP_WRITE_DOCS it writes them into the page instead.
inline void expect_documented(const std::string& page, const std::vector<std::string>& rows,
                              const std::string& begin = "| `-") {
  const std::filesystem::path path = std::filesystem::path(RP_SOURCE_DIR) / "docs" / page;
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  const auto is_row = [&begin](const std::string& line) { return line.starts_with(begin); };
  std::vector<std::string> documented, others;
  std::size_t first = 0;
  for (const std::string& line : lines) {
    if (is_row(line)) {
      if (documented.empty()) first = others.size();
      documented.push_back(line);
    } else {
      others.push_back(line);
    }
  }
  ASSERT_FALSE(documented.empty()) << "docs/" << page << " has no table; write its heading and one row, " << begin;
  if (std::getenv("RP_WRITE_DOCS") != nullptr) {
    others.insert(others.begin() + static_cast<std::ptrdiff_t>(first), rows.begin(), rows.end());
    std::ofstream written(path);
    for (const std::string& line : others) written << line << "\n";
    return;
  }
  EXPECT_EQ(documented, rows) << "docs/" << page << " is not up to date; run this test with RP_WRITE_DOCS=1";
}

}  // namespace rp
