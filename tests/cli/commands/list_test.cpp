// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/cli_fixture.hpp"

#include <sys/stat.h>

namespace rlk::cli {
namespace {

TEST_F(CliTest, ListShowsOneLineAKernel) {
  put(folder_, "toy.fwd[V=10]@x86-64-v3");
  put(folder_, "a.fwd[V=9]@x86-64-v3");
  put(builtin_, "toy.fwd[generic]@x86-64-v3");
  const Ran ran = run({"list"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  const auto lines = lines_of(ran.out);
  ASSERT_EQ(lines.size(), 4u) << ran.out;
  EXPECT_TRUE(lines[0].starts_with("NAME"));
  EXPECT_TRUE(lines[1].starts_with("a.fwd[V=9]@x86-64-v3 ")) << "sorted by name";
  EXPECT_TRUE(lines[2].starts_with("toy.fwd[V=10]@x86-64-v3 "));
  EXPECT_TRUE(lines[3].starts_with("toy.fwd[generic]@x86-64-v3 ")) << "layers in order";
  for (const char* part :
       {" x86-64-v3 ", " llvm-19.1.7 ", " user ", " 4.1 KiB ", " 2h ", " 187 ms "}) {
    EXPECT_NE(lines[2].find(part), std::string::npos) << part << lines[2];
  }
  EXPECT_NE(lines[3].find(" built-in "), std::string::npos);
  EXPECT_TRUE(lines[2].ends_with(digest_of("toy.fwd[V=10]@x86-64-v3").substr(0, 12)));
}

TEST_F(CliTest, ListWithoutACacheIsEmptyAndMakesNothing) {
  const Ran ran = run({"list"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(lines_of(ran.out).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_EQ(run({"list", "--json"}).out, "[]\n");
}

TEST_F(CliTest, ListShowsExtraLayersBeforeTheBuiltIn) {
  put(temp_ / "one", "one");
  put(temp_ / "two", "two");
  put(builtin_, "generic");
  const auto all = run_json({"list", "--layer", temp_ / "one", "--layer", temp_ / "two"});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["name"], "one");
  EXPECT_EQ(all[0]["layer"], temp_ / "one");
  EXPECT_EQ(all[1]["name"], "two");
  EXPECT_EQ(all[2]["layer"], "built-in");
}

TEST_F(CliTest, ListTakesAPartOfTheNameAndLeavesOutTheBuiltIn) {
  put(folder_, "a.fwd");
  put(folder_, "b.fwd");
  test::write_file(put(folder_, "bad"), "damage");
  put(builtin_, "a.bwd");
  const auto names = [&](std::vector<std::string> words) {
    std::string joined;
    words.insert(words.begin(), "list");
    for (const auto& one : run_json(words)) joined += one["name"].get<std::string>() + ' ';
    EXPECT_EQ(lines_of(run(words).out).size(), run_json(words).size() + 1);
    words.insert(words.end(), {"--html", "-"});
    const std::string page = run(words).out;
    for (const char* kernel : {"a.fwd", "b.fwd", "a.bwd"}) {
      EXPECT_EQ(page.find('"' + std::string(kernel) + '"') != std::string::npos,
                joined.find(kernel) != std::string::npos)
          << kernel;
    }
    return joined;
  };
  EXPECT_EQ(names({"a."}), "a.fwd a.bwd ");
  EXPECT_EQ(names({"a.", "--no-builtin"}), "a.fwd ");
  EXPECT_EQ(names({"--no-builtin"}), " a.fwd b.fwd ") << "the damaged one has no name";
  EXPECT_EQ(names({"c"}), "");
}

TEST_F(CliTest, ListAsJsonHasEveryField) {
  const std::string file = put(folder_, "toy");
  const auto all = run_json({"list"});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["name"], "toy") << "not the name inside constants";
  EXPECT_EQ(all[0]["target"], "x86-64-v3");
  EXPECT_EQ(all[0]["compiler"], compiler);
  EXPECT_EQ(all[0]["key"], digest_of("toy"));
  EXPECT_EQ(all[0]["layer"], "user");
  EXPECT_EQ(all[0]["path"], file);
  EXPECT_EQ(all[0]["file_bytes"], std::filesystem::file_size(file));
  EXPECT_EQ(all[0]["code_bytes"], 4200);
  EXPECT_EQ(all[0]["compile_ms"], 187.4);
  EXPECT_NEAR(all[0]["created"].get<double>(), static_cast<double>(std::time(nullptr) - 7200), 60);
  EXPECT_TRUE(all[0]["problem"].is_null());
}

TEST_F(CliTest, ListGoesOnPastDamage) {
  put(folder_, "good");
  test::write_file(put(folder_, "bad"), "damage");
  const std::string writable = put(folder_, "writable");
  ASSERT_EQ(::chmod(writable.c_str(), 0666), 0);
  const Ran ran = run({"list"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(lines_of(ran.out).size(), 4u);
  EXPECT_NE(ran.out.find("(expected at least 32 bytes, got 6)"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("chmod go-w"), std::string::npos) << ran.out;
}

// Metadata is text from a file: any text must do.
TEST_F(CliTest, ListTakesAnyMetadata) {
  int number = 0;
  for (const std::string metadata :
       {"", "not json", "[1, 2", "[]", "17", R"({"name": 5, "target": null, "compile_ms": "x"})",
        R"({"name": "e\u001b[31m"})", "{\"name\": \"\xff\xfe\"}",
        R"({"compile_ms": -1, "code_bytes": 1e300})", R"({"created": 1e17})"}) {
    const auto key = key_of(std::to_string(number++));
    cache::DiskStore({.read_write = folder_}).put({key.bytes, metadata, {}}, compiler);
  }
  const Ran ran = run({"list"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(lines_of(ran.out).size(), 11u);
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
  EXPECT_NE(ran.out.find("e\\x1b[31m"), std::string::npos);
  EXPECT_EQ(run_json({"list"}).size(), 10u);
  for (int i = 0; i < number; ++i) {
    EXPECT_EQ(run({"show", digest_of(std::to_string(i))}).code, 0) << i;
    EXPECT_EQ(run({"show", "--json", digest_of(std::to_string(i))}).code, 0) << i;
  }
}

TEST_F(CliTest, ColourAndTotalsAreForTerminals) {
  put(folder_, "toy");
  const Terminal terminal{.is_terminal = true, .may_colour = true};
  const Terminal no_colour{.is_terminal = true, .may_colour = false};
  EXPECT_NE(run({"list"}, terminal).out.find('\x1b'), std::string::npos);
  EXPECT_NE(run({"list"}, terminal).out.find("1 entry, "), std::string::npos);
  EXPECT_EQ(run({"list"}, no_colour).out.find('\x1b'), std::string::npos);
  EXPECT_EQ(run({"list"}).out.find('\x1b'), std::string::npos);
  EXPECT_EQ(run({"list"}).out.find("1 entry, "), std::string::npos);
  EXPECT_EQ(run({"list", "--color=never"}, terminal).out.find('\x1b'), std::string::npos);
  EXPECT_NE(run({"list", "--color=always"}).out.find('\x1b'), std::string::npos);
  EXPECT_EQ(run({"list", "--json"}, terminal).out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace rlk::cli
