// SPDX-License-Identifier: Apache-2.0
// Reads ptxas's report and rewrites one line of PTX.
#include "jit/nvrtc/compile_log.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace rlk::jit {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The number that ends where `what` begins: 188 of "188 bytes spill stores".
std::int64_t number_before(std::string_view text, std::size_t end) {
  std::size_t begin = end;
  while (begin > 0 && is_digit(text[begin - 1])) --begin;
  std::int64_t value = -1;
  std::from_chars(text.data() + begin, text.data() + end, value);
  return value;
}

}  // namespace

std::int64_t spilled_bytes(std::string_view log) {
  std::int64_t most = -1;
  for (const std::string_view what : {" bytes spill stores", " bytes spill loads"}) {
    for (auto at = log.find(what); at != log.npos; at = log.find(what, at + 1)) {
      most = std::max(most, number_before(log, at));
    }
  }
  return most;
}

bool serializes_wgmma(std::string_view log) {
  return log.find("wgmma.mma_async instructions are serialized") != log.npos;
}

bool set_ptx_version(std::vector<std::byte>& ptx) {
  const std::string_view text(reinterpret_cast<const char*>(ptx.data()), ptx.size());
  constexpr std::string_view directive = "\n.version ";
  const auto at = text.find(directive);
  if (at == text.npos) return false;
  const auto begin = at + directive.size();
  const auto end = text.find('\n', begin);
  if (end == text.npos) return false;
  std::string changed(text.substr(0, begin));
  changed += "7.4";
  // A hint about loads that 7.4 has no word for, a line of its own.
  constexpr std::string_view hint = ".pragma \"used_bytes_mask";
  for (auto line = end; line != text.npos;) {
    const auto next = text.find('\n', line + 1);
    const auto content = text.substr(line, next == text.npos ? text.npos : next - line);
    const auto first = content.find_first_not_of("\n\t ");
    if (first == text.npos || !content.substr(first).starts_with(hint)) changed += content;
    line = next;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(changed.data());
  ptx.assign(bytes, bytes + changed.size());
  return true;
}

bool ptx_has_entry(std::string_view ptx, std::string_view name) {
  constexpr std::string_view directive = ".entry ";
  for (auto at = ptx.find(directive); at != ptx.npos; at = ptx.find(directive, at + 1)) {
    const auto rest = ptx.substr(at + directive.size());
    if (!rest.starts_with(name)) continue;
    const auto next = rest.substr(name.size(), 1);
    if (next.empty() || next == "(" || next == "\n" || next == " ") return true;
  }
  return false;
}

}  // namespace rlk::jit
