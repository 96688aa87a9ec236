// SPDX-License-Identifier: Apache-2.0
// Reads, checks and shows settings by their table.
#include "runtime/settings.hpp"

#include "runtime/error.hpp"
#include "runtime/given_text.hpp"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <ranges>

namespace rlk {
namespace {

// How variables begin that tests, benchmarks and ./dev read.
constexpr std::string_view k_of_development[] = {"RLK_TEST_", "RLK_LONG_TESTS", "RLK_FAKE_",
                                                 "RLK_BENCH_", "RLK_PYTHON"};

[[noreturn]] void refuse(std::string_view source, std::string_view expected,
                         const std::string& got) {
  throw InvalidArgument(Fault{"", std::string(source), std::string(expected), got});
}

// The parts between separators, empty ones too.
std::vector<std::string> split(const std::string& list, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const auto end = std::min(list.find(separator, begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Checks a value and puts it into a field, by the field's type.
struct Setter {
  const Setting& setting;
  const std::string& text;
  std::string_view source;

  void refuse(const std::string& got) const { rlk::refuse(source, expected(setting), got); }

  template <class Word>
  void set_word(Word& field) const {
    const auto& words = setting.values.words;
    const auto found = std::ranges::find(words, text);
    if (found == words.end()) refuse(in_quotes(text));
    field = static_cast<Word>(found - words.begin());
  }
  void set(Policy& field) const { set_word(field); }
  void set(LogLevel& field) const { set_word(field); }
  void set(CacheShared& field) const { set_word(field); }
  void set(bool& field) const { set_word(field); }

  void set(int& field) const {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), field);
    const bool is_number = error == std::errc{} && end == text.data() + text.size();
    if (!is_number || field < setting.values.least || field > setting.values.most) {
      const bool is_text = setting.variable != nullptr && source == setting.variable;
      refuse(is_text ? in_quotes(text) : text);
    }
  }
  void set(std::optional<int>& field) const { set(field.emplace()); }

  void set(std::uint64_t& field) const { field = bytes_named(text, source, expected(setting)); }
  void set(std::string& field) const { field = text; }
  void set(std::optional<std::string>& field) const {
    expect_path(text, source);
    field = text;
  }

  void set(std::vector<std::string>& field) const {
    field.clear();
    for (const auto& folder : split(text, ':')) {
      if (folder.empty()) continue;  // as "$RLK_CACHE_PATH:/more" gives where it was unset
      // Relative to where? Code would be taken from whatever folder a program is started in.
      if (folder.front() != '/') refuse(in_quotes(folder));
      expect_path(folder, source);
      field.push_back(folder);
    }
  }

  void set(Targets& field) const {
    field = {};
    for (const auto& word : split(text, ',')) {
      const auto target = target_named(word);
      if (!target) refuse(in_quotes(word));
      auto& bound = backend(*target) == Backend::cpu ? field.cpu : field.cuda;
      if (bound) {
        rlk::refuse(source, "one target a backend", fmt::format("{} and {}", name(*bound), word));
      }
      const auto host = host_cpu_target();
      if (backend(*target) == Backend::cpu && (!host || *target > *host)) {
        rlk::refuse(source,
                    fmt::format("a level that this processor runs, at most {}",
                                host ? name(*host) : "none"),
                    word);
      }
      bound = target;
    }
  }
};

// The text of a field's value.
struct Getter {
  using Text = std::optional<std::string>;

  const Setting& setting;

  template <class Word>
  Text word(Word field) const {
    return std::string(setting.values.words[static_cast<std::size_t>(field)]);
  }
  Text get(Policy field) const { return word(field); }
  Text get(LogLevel field) const { return word(field); }
  Text get(CacheShared field) const { return word(field); }
  Text get(bool field) const { return word(field); }

  Text get(int field) const { return std::to_string(field); }
  Text get(std::optional<int> field) const { return field ? get(*field) : Text(); }
  Text get(const Text& field) const { return field; }

  Text get(std::uint64_t field) const {
    constexpr std::string_view units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    for (; field != 0 && field % 1024 == 0 && unit + 1 < std::size(units); ++unit) field /= 1024;
    return fmt::format("{}{}", field, units[unit]);
  }

  Text get(const std::vector<std::string>& field) const { return joined(field, ":"); }

  Text get(const Targets& field) const {
    std::vector<std::string_view> names;
    for (const auto& target : {field.cpu, field.cuda}) {
      if (target) names.push_back(name(*target));
    }
    return joined(names, ",");
  }

  template <class Parts>
  static Text joined(const Parts& parts, const char* separator) {
    return parts.empty() ? Text() : fmt::format("{}", fmt::join(parts, separator));
  }
};

// The folder of the library or program that this code was linked into; rlk-jit lies in its bin/.
std::filesystem::path folder_of_this_code() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&folder_of_this_code), &info) == 0) return {};
  std::error_code error;
  auto file = std::filesystem::canonical(info.dli_fname, error);
  if (error) file = std::filesystem::read_symlink("/proc/self/exe", error);
  auto folder = file.parent_path();
  return folder.filename() == "bin" ? folder.parent_path() : folder;
}

}  // namespace

SettingKind kind(const Setting& setting) {
  if (setting.values.most != 0) return SettingKind::number;
  if (std::holds_alternative<std::optional<std::string> Settings::*>(setting.field)) {
    return SettingKind::path;
  }
  const auto& words = setting.values.words;
  return !words.empty() && words.front() == "False" ? SettingKind::flag : SettingKind::text;
}

std::string expected(const Setting& setting) {
  const auto& [words, least, most, unset] = setting.values;
  const auto is = [&](auto field) {
    return std::holds_alternative<decltype(field)>(setting.field);
  };
  if (most != 0) return fmt::format("a whole number from {} to {}", least, most);
  if (!words.empty()) {
    return fmt::format("{} or {}", fmt::join(words.first(words.size() - 1), ", "), words.back());
  }
  if (is(&Settings::cache_path)) return "absolute folders separated by colons";
  if (is(&Settings::cache_size_bytes)) return "a size such as 500M, 1GiB or 0 (no limit)";
  if (is(&Settings::arch)) return "a target such as x86-64-v3 or sm_90a";
  return is(&Settings::tile) ? "the name of a tile" : "a path";
}

void set_value(Settings& settings, const Setting& setting, const std::string& text,
               std::string_view source) {
  const Setter setter{setting, text, source};
  std::visit([&](auto field) { setter.set(settings.*field); }, setting.field);
}

std::optional<std::string> value_text(const Settings& settings, const Setting& setting) {
  const Getter getter{setting};
  return std::visit([&](auto field) { return getter.get(settings.*field); }, setting.field);
}

std::uint64_t bytes_named(const std::string& text, std::string_view source,
                          std::string_view expected) {
  std::uint64_t number = 0;
  const char* text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, number);
  std::string unit(end, text_end);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::uint64_t factor = unit.empty() || unit == "b" ? 1 : 0;
  std::uint64_t of_1024 = 1, of_1000 = 1;
  for (const std::string letter : {"k", "m", "g", "t"}) {
    of_1024 *= 1024;
    of_1000 *= 1000;
    if (unit == letter || unit == letter + "ib") factor = of_1024;
    if (unit == letter + "b") factor = of_1000;
  }
  std::uint64_t bytes = 0;
  if (error == std::errc{} && factor != 0 && !__builtin_mul_overflow(number, factor, &bytes)) {
    return bytes;
  }
  refuse(source, expected, in_quotes(text));
}

Settings read_settings(const Lookup& environment) {
  Settings settings;
  settings.package_folder = folder_of_this_code();
  for (const Setting& setting : all_settings()) {
    if (setting.variable == nullptr) continue;
    if (const auto text = environment(setting.variable)) {
      set_value(settings, setting, *text, setting.variable);
    }
  }
  return settings;
}

std::optional<std::string> process_environment(const char* variable) {
  const char* value = std::getenv(variable);
  // An empty variable counts as unset, as in most tools.
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<std::string> path_in(const Lookup& environment, const char* variable) {
  auto path = environment(variable);
  if (path) expect_path(*path, variable);
  return path;
}

std::optional<std::string> folder_if_given(const Lookup& environment, const char* variable) {
  auto folder = environment(variable);
  if (!folder) return std::nullopt;
  std::string_view expected = expected_path(*folder);
  if (expected.empty() && folder->front() != '/') expected = "an absolute path";
  if (expected.empty()) return folder;
  log().warn("{}: expected {}, got {}; it counts as unset", variable, expected, in_quotes(*folder));
  return std::nullopt;
}

Settings read_settings() {
  Settings settings = read_settings(process_environment);
  set_log_level(settings.log_level);
  if (const auto ignored = ignored_variables(); !ignored.empty()) {
    log().warn("{}: ignored, there is no such setting; those that there are: {}",
               fmt::join(ignored, ", "), variable_names());
  }
  return settings;
}

std::vector<std::string> ignored_variables() {
  std::vector<std::string> ignored;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto name = text.substr(0, text.find('='));
    const bool is_empty = name.size() + 1 >= text.size();  // counts as unset
    const auto begins = [&](std::string_view start) { return name.starts_with(start); };
    const auto is = [&](const Setting& one) {
      return one.variable != nullptr && name == one.variable;
    };
    if (is_empty || !begins("RLK_") || std::ranges::any_of(k_of_development, begins)) continue;
    if (std::ranges::none_of(all_settings(), is)) ignored.push_back(printable(name));
  }
  std::ranges::sort(ignored);
  return ignored;
}

std::string variable_names() {
  std::vector<std::string_view> names;
  for (const Setting& setting : all_settings()) {
    if (setting.variable != nullptr) names.emplace_back(setting.variable);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace rlk
