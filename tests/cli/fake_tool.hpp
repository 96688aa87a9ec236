// SPDX-License-Identifier: Apache-2.0
// Scripts in the place of the system's tools, and variables for the time of a test.
#pragma once

#include "tests/support/temp_dir.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace rlk::test {

// A program of that path that runs these lines of sh; the path.
inline std::string fake_tool(const std::string& path, const std::string& lines) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_file(path, "#!/bin/sh\n" + lines + '\n');
  if (::chmod(path.c_str(), 0700) != 0) throw std::runtime_error("chmod: " + path);
  return path;
}

// An environment variable that has a value while this lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() {
    if (before_) {
      ::setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }

 private:
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace rlk::test
