// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/cli_fixture.hpp"

#include <ctime>

namespace rlk::cli {

CliTest::Ran CliTest::run(std::vector<std::string> words, Terminal terminal) const {
  words.insert(words.begin(), {"rlk-jit", "--cache-dir", folder_, "--package", package_});
  std::vector<const char*> argv;
  for (const auto& word : words) argv.push_back(word.c_str());
  std::ostringstream out;
  std::ostringstream err;
  const int code = cli::run(static_cast<int>(argv.size()), argv.data(), terminal, out, err);
  return {code, out.str(), err.str()};
}

nlohmann::json CliTest::run_json(std::vector<std::string> words) const {
  words.push_back("--json");
  return nlohmann::json::parse(run(std::move(words)).out);
}

nlohmann::json CliTest::finding(const std::string& subject) const {
  const auto told = run_json({"doctor"});
  for (const auto& one : told["findings"]) {
    if (one["subject"] == subject) return one;
  }
  return {};
}

std::string CliTest::put(const std::string& folder, const std::string& name,
                         const std::string& made_by) {
  const nlohmann::ordered_json metadata = {{"name", name},
                                           {"target", "x86-64-v3"},
                                           {"compiler", made_by},
                                           {"constants", {{"kV", 4711}, {"name", "inner"}}},
                                           {"created", std::time(nullptr) - 7200},
                                           {"compile_ms", 187.4},
                                           {"code_bytes", 4200}};
  cache::DiskStore({.read_write = folder})
      .put({key_of(name).bytes, metadata.dump(), std::vector<std::byte>(5000)}, made_by);
  return folder + '/' + cache::entry_file_name(digest_of(name), made_by);
}

}  // namespace rlk::cli
