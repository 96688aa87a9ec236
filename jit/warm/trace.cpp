// SPDX-License-Identifier: Apache-2.0
// Appends names to a trace and reads them back.
#include "jit/warm/trace.hpp"

#include "cache/files/open_file.hpp"
#include "cache/files/text_file.hpp"
#include "jit/parse_specialization.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <fcntl.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace rlk::jit {
namespace {
constexpr std::uint64_t k_most_bytes = std::uint64_t{64} << 20;
}

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
  if (is_given_up_) return;
  cache::FileSystem& files = cache::posix_file_system();
  std::string problem;
  if (!std::exchange(is_read_, true)) {
    const auto read = cache::read_text_file(files, *file_, k_most_bytes);
    problem = read.problem;
    std::istringstream lines(read.text);
    for (std::string line; std::getline(lines, line);) known_.insert(line);
  }
  if (problem.empty() && known_.insert(name).second) {
    cache::OpenFile file(files, *file_, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC,
                         0666);
    // One write: lines of other processes stand before or after it.
    const std::string line = name + '\n';
    const int error = file.error() != 0 ? file.error() : file.write(line.data(), line.size());
    if (error != 0) problem = cache::error_text(error);
  }
  if (problem.empty()) return;
  is_given_up_ = true;
  log().warn("trace: RLK_TRACE: {}: nothing is recorded: {}", *file_, problem);
}

TraceRead read_trace(const std::string& file, Ops ops) {
  const auto text = cache::read_text_file(cache::posix_file_system(), file, k_most_bytes);
  if (text.is_absent || !text.problem.empty()) {
    throw InvalidArgument("trace: {}: expected a file that RLK_TRACE has recorded, got: {}", file,
                          text.is_absent ? "no such file" : text.problem);
  }
  TraceRead read;
  std::istringstream lines(text.text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    try {
      const Specialization spec = parse_specialization(line, ops);
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
