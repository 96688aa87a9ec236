// SPDX-License-Identifier: Apache-2.0
#include "runtime/function_ref.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace rlk::runtime {
namespace {

int twice(FunctionRef<int(int)> function) { return function(function(1)); }

TEST(FunctionRefTest, CallsWithoutCopying) {
  int num_calls = 0;
  auto add = [&num_calls, only_one = std::make_unique<int>(5)](int x) {
    ++num_calls;
    return x + *only_one;
  };
  EXPECT_EQ(twice(add), 11);
  EXPECT_EQ(num_calls, 2);
}

TEST(FunctionRefTest, MutableAndConstCallables) {
  int state = 0;
  auto counter = [state](int x) mutable { return state += x; };
  EXPECT_EQ(twice(counter), 2);
  const auto constant = [](int x) { return 2 * x; };
  EXPECT_EQ(twice(constant), 4);
}

TEST(FunctionRefTest, ForwardsReferencesAndMoveOnlyArguments) {
  std::string text = "a";
  auto append = [](std::string& to, std::unique_ptr<char> c) { to += *c; };
  const FunctionRef<void(std::string&, std::unique_ptr<char>)> ref = append;
  ref(text, std::make_unique<char>('b'));
  EXPECT_EQ(text, "ab");
}

}  // namespace
}  // namespace rlk::runtime
