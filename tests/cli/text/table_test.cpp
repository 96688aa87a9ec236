// SPDX-License-Identifier: Apache-2.0
#include "cli/text/table.hpp"

#include <gtest/gtest.h>

#include <sstream>

namespace rlk::cli {
namespace {

std::string printed(const Table& table, bool colour = false) {
  std::ostringstream out;
  table.print(out, colour);
  return out.str();
}

TEST(Table, ColumnsLineUpAndNoBlanksEndALine) {
  Table table({{"NAME"}, {"SIZE", Align::right}, {"NOTE"}});
  table.add({{"a"}, {"1"}, {"x"}});
  table.add({{"n\xc3\xa4h"}, {"12345"}, {""}});
  table.add({{""}, {""}, {"y"}});
  table.add({{""}, {""}, {""}});
  EXPECT_EQ(printed(table),
            "NAME   SIZE  NOTE\n"
            "a         1  x\n"
            "n\xc3\xa4h   12345\n"
            "             y\n"
            "\n");
}

TEST(Table, ColourDoesNotMoveColumns) {
  Table table({{""}, {""}});
  table.add({{"ab", Colour::red}, {"x"}});
  table.add({{"c"}, {"y"}});
  EXPECT_EQ(printed(table, true), "\x1b[31mab\x1b[0m  x\nc   y\n");
  EXPECT_EQ(printed(table), "ab  x\nc   y\n");
}

}  // namespace
}  // namespace rlk::cli
