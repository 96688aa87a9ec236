// SPDX-License-Identifier: Apache-2.0
// What the tests of rlk-jit share: a cache, a package folder, and the program called in this
// process. What takes JSON is compiled once, in cli_fixture.cpp: it takes seconds.
#pragma once

#include "cache/disk_store.hpp"
#include "cache/entry_name.hpp"
#include "cli/command_line.hpp"
#include "tests/support/captured_log.hpp"
#include "tests/support/temp_dir.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace rlk::cli {

inline constexpr const char* compiler = "llvm-19.1.7";

class CliTest : public testing::Test {
 protected:
  struct Ran {
    int code = -1;
    std::string out;
    std::string err;
  };

  CliTest() {
    for (const char* variable :
         {"RLK_JIT", "RLK_CACHE_DIR", "RLK_CACHE_PATH", "RLK_ARCH", "RLK_LOG", "RLK_NUM_THREADS",
          "RLK_VALIDATE", "RLK_WORKSPACE_MIB", "RLK_DUMP_DIR", "XDG_CACHE_HOME", "VIRTUAL_ENV",
          "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"}) {
      ::unsetenv(variable);
    }
    // Whatever machine this is.
    ::setenv("RLK_NVRTC", (temp_ / "no-nvrtc").c_str(), 1);
    ::setenv("HOME", temp_.path().c_str(), 1);
    std::filesystem::create_directories(builtin_);
  }

  Ran run(std::vector<std::string> words, Terminal terminal = {}) const;
  nlohmann::json run_json(std::vector<std::string> words) const;

  // What doctor finds of a subject, the first of several.
  nlohmann::json finding(const std::string& subject) const;

  static cache::Key key_of(const std::string& name) {
    return cache::KeyBuilder().field("op", "toy").field("specialization", name).finish();
  }

  static std::string digest_of(const std::string& name) { return key_of(name).digest(); }

  // Puts an entry and returns its file.
  static std::string put(const std::string& folder, const std::string& name,
                         const std::string& made_by = compiler);

  test::TempDir temp_;
  std::string folder_ = temp_ / "cache";
  std::string package_ = temp_ / "package";
  std::string builtin_ = package_ + "/builtin";
  test::CapturedLog log_;
};

// Each line's text, without the line feeds.
inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace rlk::cli
