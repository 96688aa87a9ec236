// SPDX-License-Identifier: Apache-2.0
// Prints JSON.
#include "cli/text/json.hpp"

namespace rlk::cli {

void print_json(std::ostream& out, const Json& json) {
  out << json.dump(2, ' ', true, Json::error_handler_t::replace) << '\n';
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

void print_json_lines(std::ostream& out, const std::vector<std::string>& lines) {
  out << '[';
  const char* before = "\n  ";
  for (const std::string& line : lines) {
    out << before << line;
    before = ",\n  ";
  }
  out << (lines.empty() ? "]\n" : "\n]\n");
}

}  // namespace rlk::cli
