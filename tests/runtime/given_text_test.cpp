// SPDX-License-Identifier: Apache-2.0
// What is shown of a text, and which paths nobody can have meant.
#include "runtime/given_text.hpp"

#include "runtime/error.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

namespace rlk {
namespace {

TEST(GivenText, ControlBytesAreShownNotSent) {
  EXPECT_EQ(printable("a\x1b[31m\n\x7f"), "a\\x1b[31m\\x0a\\x7f");
  EXPECT_EQ(printable("n\xc3\xa4h \xe6\xbc\xa2 \xf0\x9f\x99\x82"),
            "n\xc3\xa4h \xe6\xbc\xa2 \xf0\x9f\x99\x82");
  // CSI as one code point, marks that turn the order round, bytes that are no UTF-8.
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b"),
            "a\\xe2\\x80\\xaeb");
  EXPECT_EQ(printable("\xff\xc0\x80\xe4\xbd"), "\\xff\\xc0\\x80\\xe4\\xbd");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  // A no-break space and a byte order mark, as pages and editors leave them.
  EXPECT_EQ(in_quotes("a\xc2\xa0\xef\xbb\xbf"), "\"a\\xc2\\xa0\\xef\\xbb\\xbf\"");
}

TEST(GivenText, PathsThatCanBeMeant) {
  for (const std::string path :
       {"/a", "a", "./~", "./~/a", "./$HOME", "./%h", "/a b/c", "../a", "/a/~", "/a~", "/a$", "/$5",
        "/a%20b", "/50%", "/a/%20", "/n\xc3\xa4h", "/latin-\xe4", "/it's", "-"}) {
    EXPECT_EQ(expected_path(path), "") << path;
    expect_path(path, "test");
  }
}

TEST(GivenText, PathsThatNobodyCanHaveMeant) {
  const auto refused = [](const std::string& path, const std::string& words) {
    const std::string said = test::what<InvalidArgument>([&] { expect_path(path, "RLK_X"); });
    EXPECT_TRUE(said.starts_with("RLK_X: expected a path" + words)) << said;
    EXPECT_TRUE(said.ends_with(", got \"" + printable(path) + "\"")) << said;
  };
  refused("", ",");
  for (const std::string path : {"/a\r", "/a\n", "\t/a", "/a\x1b[1m", "/a\x7f", "\xef\xbb\xbf/a",
                                 "/a\xc2\xa0", "./~\r", "/a\xe2\x80\x8b"}) {
    refused(path, " without characters that nobody sees");
  }
  refused(std::string("/a\0b", 4), " without characters that nobody sees");
  for (const std::string path : {" /a", "/a ", " "}) refused(path, " without spaces around it");
  for (const std::string path : {"\"/a\"", "'/a'"}) refused(path, " without quotes around it");
  for (const std::string path : {"~", "~/a", "~user/a", "$HOME", "$HOME/a", "/a/$USER", "${HOME}/a",
                                 "$(HOME)/a", "/a/$_x", "%h/a", "/run/%U", "%TEMP%/a"}) {
    refused(path, " in full (~, $NAME and %h are not expanded");
  }
}

}  // namespace
}  // namespace rlk
