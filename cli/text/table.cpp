// SPDX-License-Identifier: Apache-2.0
// Prints tables.
#include "cli/text/table.hpp"

#include <algorithm>

namespace rlk::cli {

void Table::print(std::ostream& out, bool colour) const {
  std::vector<Cell> titles;
  std::vector<std::size_t> widths;
  bool has_titles = false;
  for (const Column& column : columns_) {
    titles.push_back({column.title, Colour::bold});
    widths.push_back(width(column.title));
    has_titles = has_titles || !column.title.empty();
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], width(row[i].text));
    }
  }
  const auto print_row = [&](const std::vector<Cell>& row) {
    std::string line;
    std::size_t num_blanks = 0;  // written only before further text
    for (std::size_t i = 0; i < row.size(); ++i) {
      const Cell& cell = row[i];
      const std::size_t num_free = widths[i] - width(cell.text);
      if (columns_[i].align == Align::right) num_blanks += num_free;
      if (!cell.text.empty()) {
        line.append(num_blanks, ' ');
        line += painted(cell.text, cell.colour, colour);
        num_blanks = 0;
      }
      num_blanks += (columns_[i].align == Align::left ? num_free : 0) + 2;
    }
    out << line << '\n';
  };
  if (has_titles) print_row(titles);
  for (const auto& row : rows_) print_row(row);
}

}  // namespace rlk::cli
