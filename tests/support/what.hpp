// SPDX-License-Identifier: Apache-2.0
// The words of what a piece of work throws.
#pragma once

#include <string>

namespace rlk::test {

// "" if it throws nothing; another kind of error goes on to the test.
template <class Kind, class Work>
std::string what(Work work) {
  try {
    work();
  } catch (const Kind& error) {
    return error.what();
  }
  return "";
}

}  // namespace rlk::test
