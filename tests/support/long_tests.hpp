// SPDX-License-Identifier: Apache-2.0
// How much a test of chance does: little by default, all of it where RLK_LONG_TESTS is set.
#pragma once

#include <cstdlib>

namespace rlk::test {

inline int amount(int usual, int in_long_tests) {
  return std::getenv("RLK_LONG_TESTS") != nullptr ? in_long_tests : usual;
}

}  // namespace rlk::test
