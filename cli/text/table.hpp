// SPDX-License-Identifier: Apache-2.0
// Rows of text in columns that line up.
#pragma once

#include "cli/text/text.hpp"

#include <ostream>
#include <string>
#include <vector>

namespace rlk::cli {

enum class Align { left, right };

struct Column {
  std::string title;  // all empty: no title line
  Align align = Align::left;
};

struct Cell {
  std::string text;
  Colour colour = Colour::none;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell a column.
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }

  // Two blanks between columns, none at the end of a line.
  void print(std::ostream& out, bool colour) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace rlk::cli
