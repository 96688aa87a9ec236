// SPDX-License-Identifier: Apache-2.0
// What --json prints.
#pragma once

#include <nlohmann/json.hpp>

#include <ostream>
#include <string>
#include <vector>

namespace rlk::cli {

// Ordered: metadata is shown in the order in which it was written.
using Json = nlohmann::ordered_json;

// Null for what nobody told: an empty text, a negative number.
inline Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
template <class Number>
Json or_null(Number value) {
  return value < 0 ? Json() : Json(value);
}

// For --json, in ASCII. Bytes that are no UTF-8 become U+FFFD.
void print_json(std::ostream& out, const Json& json);

// The same for an array of many objects, a line each.
std::string line_of(const Json& json);
void print_json_lines(std::ostream& out, const std::vector<std::string>& lines);

}  // namespace rlk::cli
