// SPDX-License-Identifier: Apache-2.0
// Writes, parses and sums lines of usage.
#include "cache/usage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

namespace rlk::cache {
namespace {

constexpr std::string_view k_version = "1";
constexpr std::array k_events = {UsageEvent::hit, UsageEvent::compiled, UsageEvent::failed,
                                 UsageEvent::fallback};
constexpr std::size_t k_most_kernel_name_bytes = 1024;

bool is_name(std::string_view text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  return !text.empty() && text.size() <= k_most_kernel_name_bytes &&
         std::ranges::none_of(text, is_control);
}

// The text up to the next blank, which goes too; all of it where there is none.
std::string_view take_word(std::string_view& rest) {
  const std::string_view word = rest.substr(0, rest.find(' '));
  rest.remove_prefix(std::min(word.size() + 1, rest.size()));
  return word;
}

template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  return error == std::errc() && end == text.end() && text.front() != '-';
}

std::optional<Usage> parse_line(std::string_view line) {
  Usage usage;
  if (take_word(line) != k_version) return std::nullopt;
  const std::string_view word = take_word(line);
  const auto* event = std::ranges::find(k_events, word, [](UsageEvent one) { return name(one); });
  if (event == k_events.end()) return std::nullopt;
  usage.event = *event;
  if (!parse_number(take_word(line), usage.count) || !parse_number(take_word(line), usage.ms) ||
      !parse_number(take_word(line), usage.time_s) || !is_name(line)) {
    return std::nullopt;
  }
  usage.kernel = line;
  return usage;
}

}  // namespace

std::string_view name(UsageEvent event) {
  switch (event) {
    case UsageEvent::hit:
      return "hit";
    case UsageEvent::compiled:
      return "compiled";
    case UsageEvent::failed:
      return "failed";
    case UsageEvent::fallback:
      break;
  }
  return "fallback";
}

std::string usage_line(const Usage& usage) {
  if (!is_name(usage.kernel)) return {};
  return fmt::format("{} {} {} {} {} {}\n", k_version, name(usage.event), usage.count, usage.ms,
                     usage.time_s, usage.kernel);
}

std::vector<Usage> sum_usage(std::string_view text) {
  std::map<std::pair<std::string, UsageEvent>, Usage> sums;
  // What stands after the last line feed is a line that is being written.
  for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    auto usage = parse_line(text.substr(0, end));
    text.remove_prefix(end + 1);
    if (!usage) continue;
    const auto [at, is_new] = sums.try_emplace({usage->kernel, usage->event}, *usage);
    if (is_new) continue;
    Usage& sum = at->second;
    sum.count += usage->count;
    sum.ms += usage->ms;
    sum.time_s = std::max(sum.time_s, usage->time_s);
  }
  std::vector<Usage> all;
  all.reserve(sums.size());
  for (auto& [key, sum] : sums) all.push_back(std::move(sum));
  return all;
}

std::string usage_text(std::vector<Usage> sums, std::size_t most_bytes) {
  std::ranges::stable_sort(sums, std::greater<>(), &Usage::time_s);
  std::string text;
  for (const Usage& sum : sums) {
    const std::string line = usage_line(sum);
    if (text.size() + line.size() > most_bytes) break;
    text += line;
  }
  return text;
}

}  // namespace rlk::cache
