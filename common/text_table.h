// common/text_table.h
// Formats a table with aligned columns, each as wide as its widest cell.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace rp {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> heading) : rows_{std::move(heading)} {}

  // REQUIRES: `row` has as many cells as the heading.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  // Returns one line for each row, with two blanks between columns.
  [[nodiscard]] std::string text() const {
    std::string text;
    for (const std::vector<std::string>& row : rows_) {
      std::string line;
      for (std::size_t c = 0; c < row.size(); ++c) line += row[c] + std::string(width(c) - row[c].size() + 2, ' ');
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return text;
  }

 private:
  [[nodiscard]] std::size_t width(std::size_t column) const {
    std::size_t most = 0;
    for (const std::vector<std::string>& row : rows_) most = std::max(most, row[column].size());
    return most;
  }

  std::vector<std::vector<std::string>> rows_;
};

}  // namespace rp
