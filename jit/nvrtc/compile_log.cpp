// SPDX-License-Identifier: Apache-2.0
// Reads ptxas's report and rewrites PTX.
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

bool pack_ptx(std::vector<std::byte>& ptx) {
  const std::string_view text(reinterpret_cast<const char*>(ptx.data()), ptx.size());
  // A hint about loads that 7.4 has no word for.
  constexpr std::string_view hint = ".pragma \"used_bytes_mask";
  std::string packed;
  packed.reserve(text.size());
  bool has_version = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    auto line = text.substr(at, end - at);
    at = end + 1;
    line.remove_prefix(std::min(line.find_first_not_of("\t "), line.size()));
    if (line.empty() || line.starts_with("//") || line.starts_with(hint)) continue;
    if (line.starts_with(".version ")) {
      has_version = true;
      line = ".version 7.4";
    }
    packed += line;
    if (end < text.size()) packed += '\n';
  }
  if (!has_version) return false;
  const auto* bytes = reinterpret_cast<const std::byte*>(packed.data());
  ptx.assign(bytes, bytes + packed.size());
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
