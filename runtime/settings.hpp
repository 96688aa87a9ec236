// SPDX-License-Identifier: Apache-2.0
// The settings: what the environment says, read once, and what `rlk.jit.configure` changes.
#pragma once

#include "runtime/log.hpp"
#include "runtime/target.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace rlk {

// sync: a miss compiles. async: a miss runs the generic variant and compiles in the background.
// off: never compiles; layers, else the generic variant.
enum class Policy : std::uint8_t { sync, async, off };

// Who besides the owner may write the read-write folder, as cache/files/trust.hpp has it.
enum class CacheShared : std::uint8_t { owner, group, all };

// The tile that `rlk-jit tune` chose, or else the op.
inline constexpr std::string_view k_tuned = "tuned";

// A backend without a target takes what the device has.
struct Targets {
  std::optional<Target> cpu, cuda;
};

// settings.cpp has the table of these fields: names, variables, what each may be.
struct Settings {
  Policy policy = Policy::sync;
  LogLevel log_level = LogLevel::warn;
  Targets arch;
  std::optional<int> num_threads;
  bool specialize = true;
  std::optional<std::string> cache_dir;
  std::vector<std::string> cache_path;  // absolute, in order
  std::uint64_t cache_size_bytes = std::uint64_t{1} << 30;
  CacheShared cache_shared = CacheShared::owner;
  bool validate_sync = false;
  int workspace_mib = 768;
  int saved_mib = 512;
  int max_sms = 0;
  std::string tile{k_tuned};
  std::optional<std::string> nvrtc;
  std::optional<std::string> trace_file;
  std::optional<std::string> dump_dir;
  std::filesystem::path package_folder;  // holds librlk_llvm.so and builtin/; beside this code
};

// What a setting may be, besides what the type of its field says.
struct SettingValues {
  std::span<const std::string_view> words{};  // of an enum or bool, in the order of its values
  int least = 0, most = 0;                    // of a number
  std::string_view unset{};                   // docs/settings.md: what holds where nothing is set
};

struct Setting {
  std::string_view name;  // as `configure` takes it; empty: the environment alone sets it
  const char* variable;   // null: `configure` alone sets it
  std::variant<Policy Settings::*, LogLevel Settings::*, CacheShared Settings::*, bool Settings::*,
               int Settings::*, std::optional<int> Settings::*, std::uint64_t Settings::*,
               std::string Settings::*, std::optional<std::string> Settings::*,
               std::vector<std::string> Settings::*, Targets Settings::*>
      field;
  SettingValues values;
  std::string_view meaning;  // docs/settings.md
};

std::span<const Setting> all_settings();

// What a value is in Python.
enum class SettingKind : std::uint8_t { text, path, number, flag };
SettingKind kind(const Setting& setting);

// What it may be, as errors and docs/settings.md say it: "sync, async or off".
std::string expected(const Setting& setting);

// Throws InvalidArgument, which names the source, on a value that the setting cannot have, such as
// a CPU level that this host cannot run.
void set_value(Settings& settings, const Setting& setting, const std::string& text,
               std::string_view source);

// The text that set_value takes; nothing for an optional that is not set.
std::optional<std::string> value_text(const Settings& settings, const Setting& setting);

using Lookup = std::function<std::optional<std::string>(const char* name)>;

std::optional<std::string> process_environment(const char* variable);

// A variable that tells where something may be made: a path that nobody can have meant raises
// InvalidArgument, which names the variable.
std::optional<std::string> path_in(const Lookup& environment, const char* variable);

// A folder that others' variables name and that is looked into among others: one that is no
// absolute path is passed over, with a warning.
std::optional<std::string> folder_if_given(const Lookup& environment, const char* variable);

// Throws InvalidArgument on a value that a variable cannot have, naming the variable.
Settings read_settings(const Lookup& environment);

// The process's. Sets the log's level, and warns of variables that are ignored.
Settings read_settings();

// Variables of the process that are named as if they were settings, and are none.
std::vector<std::string> ignored_variables();

// "RLK_JIT, RLK_ARCH, ...": those that there are.
std::string variable_names();

// "500000", "512K", "1GiB", "2GB": K, M, G, T and KiB, MiB, ... are powers of 1024, KB, MB, ... of
// 1000, in either case. Throws InvalidArgument, which names the source and what was expected.
std::uint64_t bytes_named(const std::string& text, std::string_view source,
                          std::string_view expected);

}  // namespace rlk
