// SPDX-License-Identifier: Apache-2.0
// JSON as Python and editors write it.
#include "jit/warm/config_file.hpp"

#include "runtime/error.hpp"
#include "tests/support/temp_dir.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace rlk::jit {
namespace {

using Json = nlohmann::json;

Json read(const std::string& text) {
  const test::TempDir folder;
  std::ofstream(folder / "config.json") << text;
  return read_config_file(folder.path()).root;
}

TEST(ConfigFileTest, NumbersOfPythonAreNames) {
  EXPECT_EQ(
      read(R"({"a": [0.0, Infinity,-Infinity,NaN], "b": {"c":NaN}, "NaN": "Infinity"})"),
      Json::parse(
          R"({"a": [0.0, "Infinity", "-Infinity", "NaN"], "b": {"c": "NaN"}, "NaN": "Infinity"})"));
  EXPECT_EQ(read(R"({"a\\": "\"NaN\\", "b": -Infinity})"),
            Json::parse(R"({"a\\": "\"NaN\\", "b": "-Infinity"})"));
}

TEST(ConfigFileTest, HalvesOfPairsAreRead) {
  EXPECT_EQ(read(R"({"a": "x\ud83d", "b\uDE00": 1, "c": "\\ud83d\u00e9"})").at("c"),
            "\\ud83d\u00e9");
}

TEST(ConfigFileTest, OtherWordsAreNoNumbers) {
  for (const char* word : {"nan", "Inf", "infinity", "+Infinity", "--Infinity", "NaN1", "-NaN"}) {
    EXPECT_THROW(read(R"({"a": )" + std::string(word) + "}"), InvalidArgument) << word;
  }
}

TEST(ConfigFileTest, AByteOrderMarkIsPassedOver) {
  EXPECT_EQ(read("\xef\xbb\xbf{\"a\": Infinity}\r\n"), Json({{"a", "Infinity"}}));
}

TEST(ConfigFileTest, WhatIsInMemoryIsNamedInErrors) {
  EXPECT_EQ(parse_config("Gemma2Config", R"({"a": NaN})").root, Json({{"a", "NaN"}}));
  try {
    parse_config("Gemma2Config", "[1]");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "model: Gemma2Config: expected a JSON object, got one of type array");
  }
}

}  // namespace
}  // namespace rlk::jit
