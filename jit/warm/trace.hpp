// SPDX-License-Identifier: Apache-2.0
// RLK_TRACE: a text file of kernel names, one a line, of what processes asked for; `warm --trace`
// compiles them elsewhere.
#pragma once

#include "jit/specialization.hpp"

#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rlk::jit {

// Thread-safe; any number of processes may record to one file. Touches nothing before the first
// record.
class Trace {
 public:
  explicit Trace(std::optional<std::string> file) : file_(std::move(file)) {}

  // Adds the name unless the file has it. A file that cannot be written is said once.
  void record(const Specialization& spec) noexcept;

 private:
  void add(const std::string& name);

  const std::optional<std::string> file_;  // nothing: nothing is recorded
  std::mutex mutex_;
  bool is_read_ = false, is_given_up_ = false;
  std::set<std::string> known_;
  std::string start_;  // of the next line, where the one before has no end
};

struct TraceRead {
  std::vector<Specialization> kernels;  // each once, in order
  std::vector<std::string> problems;    // lines that name no kernel of this build, and why
};

// Throws InvalidArgument where the file cannot be read.
TraceRead read_trace(const std::string& file, Ops ops);

}  // namespace rlk::jit
