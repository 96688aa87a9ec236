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
#include <string_view>
#include <utility>
#include <vector>

namespace rlk::jit {
namespace {
constexpr std::uint64_t k_most_trace_bytes = std::uint64_t{64} << 20;

// Without what an editor of another system leaves around them: a byte order mark, a carriage
// return, spaces.
std::vector<std::string> lines_of(std::string_view text) {
  constexpr std::string_view k_mark = "\xef\xbb\xbf", k_space = " \t\r";
  if (text.starts_with(k_mark)) text.remove_prefix(k_mark.size());
  std::vector<std::string> lines;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(k_space), line.size()));
    lines.emplace_back(line.substr(0, line.find_last_not_of(k_space) + 1));
  }
  return lines;
}

}  // namespace

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
    const auto read = cache::read_text_file(files, *file_, k_most_trace_bytes);
    problem = read.problem;
    for (std::string& line : lines_of(read.text)) known_.insert(std::move(line));
    // An editor may have left the last line without its end.
    if (!read.text.empty() && read.text.back() != '\n') start_ = "\n";
  }
  if (problem.empty() && known_.insert(name).second) {
    cache::OpenFile file(files, *file_, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC,
                         0666);
    // One write: lines of other processes stand before or after it.
    const std::string line = std::exchange(start_, "") + name + '\n';
    const int error = file.error() != 0 ? file.error() : file.write(line.data(), line.size());
    if (error != 0) problem = cache::error_text(error);
  }
  if (problem.empty()) return;
  is_given_up_ = true;
  log().warn("trace: RLK_TRACE: {}: nothing is recorded: {}", *file_, problem);
}

TraceRead read_trace(const std::string& file, Ops ops) {
  const auto text = cache::read_text_file(cache::posix_file_system(), file, k_most_trace_bytes);
  if (text.is_absent || !text.problem.empty()) {
    throw InvalidArgument("trace: {}: expected a file that RLK_TRACE has recorded, got: {}", file,
                          text.is_absent ? "no such file" : text.problem);
  }
  TraceRead read;
  int number = 0;
  for (const std::string& line : lines_of(text.text)) {
    ++number;
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
