// SPDX-License-Identifier: Apache-2.0
// Appends names to a trace and reads them back.
#include "jit/warm/trace.hpp"

#include "jit/parse_specialization.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace rlk::jit {

void Trace::record(const Specialization& spec) noexcept {
  if (!file_) return;
  try {
    const std::lock_guard lock(mutex_);
    add(spec.text());
  } catch (const std::exception& error) {
    log().warn("trace: {}", error.what());
  }
}

void Trace::add(const std::string& name) {
  if (!is_read_) {
    is_read_ = true;
    std::ifstream in(*file_);
    for (std::string line; std::getline(in, line);) known_.insert(line);
  }
  if (!known_.insert(name).second) return;
  const int file = ::open(file_->c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  const std::string line = name + '\n';
  // One write: lines of other processes stand before or after it.
  const bool is_written =
      file >= 0 && ::write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  if (file >= 0) ::close(file);
  if (is_written || known_.contains("")) return;
  known_.insert("");  // said
  log().warn("trace: RLK_TRACE: {}: not written: {}", *file_, std::strerror(error));
}

TraceRead read_trace(const std::string& file) {
  std::ifstream in(file);
  if (!in) {
    throw InvalidArgument("trace: {}: expected a file that RLK_TRACE has recorded, got: {}", file,
                          std::strerror(errno));
  }
  TraceRead read;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    try {
      const Specialization spec = parse_specialization(line);
      if (std::ranges::find(read.kernels, spec) == read.kernels.end()) {
        read.kernels.push_back(spec);
      }
    } catch (const InvalidArgument& error) {
      read.problems.push_back(fmt::format("{}: line {}: {}", file, number, error.what()));
    }
  }
  return read;
}

}  // namespace rlk::jit
