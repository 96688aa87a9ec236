// SPDX-License-Identifier: Apache-2.0
// The text of a Fault.
#include "runtime/error.hpp"

namespace rlk {

std::string Fault::text() const {
  std::string text;
  for (const std::string* part : {&op, &argument}) {
    if (!part->empty()) text += *part + ": ";
  }
  text += "expected ";
  for (const char c : expected) {
    if (c != '{' && c != '}') text += c;
  }
  if (!got.empty()) text += ", got " + got;
  return text;
}

}  // namespace rlk
