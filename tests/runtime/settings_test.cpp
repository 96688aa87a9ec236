// SPDX-License-Identifier: Apache-2.0
// What each variable may say, and the words for what it may not.
#include "runtime/settings.hpp"

#include "runtime/error.hpp"
#include "tests/support/captured_log.hpp"
#include "tests/support/what.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace rlk {
namespace {

using test::what;
using Environment = std::map<std::string, std::string>;

Settings read(const Environment& environment) {
  return read_settings([&](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

const Setting& setting(std::string_view name) {
  return *std::ranges::find(all_settings(), name, &Setting::name);
}

std::string refused(const std::string& variable, const std::string& text) {
  return what<InvalidArgument>([&] { read({{variable, text}}); });
}

TEST(Settings, Defaults) {
  const Settings settings = read({});
  EXPECT_EQ(settings.policy, Policy::sync);
  EXPECT_EQ(settings.log_level, LogLevel::warn);
  EXPECT_EQ(settings.arch.cpu, std::nullopt);
  EXPECT_EQ(settings.arch.cuda, std::nullopt);
  EXPECT_EQ(settings.num_threads, std::nullopt);
  EXPECT_EQ(settings.cache_dir, std::nullopt);
  EXPECT_TRUE(settings.cache_path.empty());
  EXPECT_EQ(settings.cache_shared, CacheShared::owner);
  EXPECT_EQ(settings.cache_size_bytes, 1u << 30);
  EXPECT_EQ(settings.dump_dir, std::nullopt);
  EXPECT_FALSE(settings.validate_sync);
  EXPECT_EQ(settings.workspace_mib, 768);
  EXPECT_FALSE(settings.package_folder.empty());
}

TEST(Settings, EveryVariableIsRead) {
  const Settings settings = read({{"RLK_JIT", "off"},
                                  {"RLK_LOG", "info"},
                                  {"RLK_ARCH", "x86-64-v2,sm_90a"},
                                  {"RLK_NUM_THREADS", "3"},
                                  {"RLK_CACHE_DIR", "/cache"},
                                  {"RLK_CACHE_PATH", "/a:/b c"},
                                  {"RLK_CACHE_SHARED", "group"},
                                  {"RLK_CACHE_SIZE", "2G"},
                                  {"RLK_NVRTC", "/nvrtc"},
                                  {"RLK_TRACE", "/trace"},
                                  {"RLK_DUMP_DIR", "/dump"},
                                  {"RLK_VALIDATE", "sync"},
                                  {"RLK_WORKSPACE_MIB", "64"}});
  EXPECT_EQ(settings.policy, Policy::off);
  EXPECT_EQ(settings.log_level, LogLevel::info);
  EXPECT_EQ(settings.arch.cpu, Target::x86_64_v2);
  EXPECT_EQ(settings.arch.cuda, Target::sm_90a);
  EXPECT_EQ(settings.num_threads, 3);
  EXPECT_EQ(settings.cache_dir, "/cache");
  EXPECT_EQ(settings.cache_path, (std::vector<std::string>{"/a", "/b c"}));
  EXPECT_EQ(settings.cache_shared, CacheShared::group);
  EXPECT_EQ(settings.cache_size_bytes, std::uint64_t{2} << 30);
  EXPECT_EQ(settings.nvrtc, "/nvrtc");
  EXPECT_EQ(settings.trace_file, "/trace");
  EXPECT_EQ(settings.dump_dir, "/dump");
  EXPECT_TRUE(settings.validate_sync);
  EXPECT_EQ(settings.workspace_mib, 64);
}

// What is shown of a value is what sets it.
TEST(Settings, EveryValueIsShownAsItIsTaken) {
  const std::map<std::string_view, std::string> texts = {
      {"policy", "async"},        {"arch", "x86-64-v2,sm_80"},
      {"num_threads", "5"},       {"log", "error"},
      {"specialize", "False"},    {"validate", "sync"},
      {"workspace_mib", "9"},     {"saved_mib", "3"},
      {"max_sms", "7"},           {"tile", "64-static"},
      {"cache_dir", "/d"},        {"RLK_CACHE_PATH", "/a:/b"},
      {"RLK_CACHE_SIZE", "3MiB"}, {"RLK_CACHE_SHARED", "group"},
      {"RLK_NVRTC", "/n"},        {"RLK_TRACE", "/t"},
      {"RLK_DUMP_DIR", "/u"}};
  EXPECT_EQ(texts.size(), all_settings().size());
  for (const Setting& setting : all_settings()) {
    const std::string& text = texts.at(setting.name.empty() ? setting.variable : setting.name);
    Settings settings;
    EXPECT_NE(value_text(settings, setting), text);
    set_value(settings, setting, text, "test");
    EXPECT_EQ(value_text(settings, setting), text);
  }
}

TEST(Settings, AnArchBindsItsBackendAlone) {
  for (const Target target : cuda_targets()) {
    const Settings settings = read({{"RLK_ARCH", std::string(name(target))}});
    EXPECT_EQ(settings.arch.cuda, target);
    EXPECT_EQ(settings.arch.cpu, std::nullopt);
  }
  EXPECT_EQ(read({{"RLK_ARCH", "x86-64-v2"}}).arch.cuda, std::nullopt);
  EXPECT_EQ(read({{"RLK_ARCH", "sm_80,x86-64-v2"}}).arch.cpu, Target::x86_64_v2);
  // configure(arch=) says anew what is bound.
  Settings settings = read({{"RLK_ARCH", "x86-64-v2,sm_80"}});
  set_value(settings, setting("arch"), "compute_80", "configure: arch");
  EXPECT_EQ(settings.arch.cuda, Target::compute_80);
  EXPECT_EQ(settings.arch.cpu, std::nullopt);
}

TEST(Settings, AnUnknownArchIsRefused) {
  for (const std::string text : {"sm_90", "sm90a", "SM_90A", "native", "cpu", "sm_90a,", ",sm_90a",
                                 "sm_90a x86-64-v2", "sm_90a, x86-64-v2"}) {
    EXPECT_TRUE(refused("RLK_ARCH", text)
                    .starts_with("RLK_ARCH: expected a target such as x86-64-v3 or sm_90a, got \""))
        << text;
  }
}

TEST(Settings, TwoTargetsOfABackendAreRefused) {
  EXPECT_EQ(refused("RLK_ARCH", "sm_80,x86-64-v2,sm_90a"),
            "RLK_ARCH: expected one target a backend, got sm_80 and sm_90a");
  EXPECT_EQ(refused("RLK_ARCH", "x86-64-v2,x86-64-v2"),
            "RLK_ARCH: expected one target a backend, got x86-64-v2 and x86-64-v2");
}

TEST(Settings, Validate) {
  EXPECT_FALSE(read({{"RLK_VALIDATE", "async"}}).validate_sync);
  for (const std::string text : {"on", "1", "SYNC", "sync "}) {
    EXPECT_EQ(refused("RLK_VALIDATE", text),
              "RLK_VALIDATE: expected async or sync, got \"" + text + "\"");
  }
}

TEST(Settings, WorkspaceMib) {
  EXPECT_EQ(read({{"RLK_WORKSPACE_MIB", "1"}}).workspace_mib, 1);
  EXPECT_EQ(read({{"RLK_WORKSPACE_MIB", "1048576"}}).workspace_mib, 1 << 20);
  for (const std::string text :
       {"0", "-1", "1048577", "1.5", "512M", " 512", "0x200", "many", "99999999999999999999"}) {
    EXPECT_EQ(refused("RLK_WORKSPACE_MIB", text),
              "RLK_WORKSPACE_MIB: expected a whole number from 1 to 1048576, got \"" + text + "\"");
  }
}

// An error of typing, or a variable of earlier versions; those of tests are nobody's settings.
TEST(Settings, VariablesThatAreNoSettingsAreNamed) {
  const test::CapturedLog log;
  const char* const names[] = {"RLK_CACHEDIR", "RLK_MAX_KERNELS", "RLK_TEST_X", "RLK_DUMP_DIR"};
  for (const char* name : names) ::setenv(name, "/x", 1);
  ::setenv("RLK_EMPTY", "", 1);
  const auto ignored = ignored_variables();
  read_settings();
  for (const char* name : names) ::unsetenv(name);
  ::unsetenv("RLK_EMPTY");
  EXPECT_EQ(ignored, (std::vector<std::string>{"RLK_CACHEDIR", "RLK_MAX_KERNELS"}));
  EXPECT_TRUE(log.text().starts_with(
      "warning: RLK_CACHEDIR, RLK_MAX_KERNELS: ignored, there is no such setting; those that there "
      "are: RLK_JIT, RLK_ARCH, "))
      << log.text();
  EXPECT_EQ(std::ranges::count(log.text(), '\n'), 1);
}

TEST(Settings, LogLevel) {
  EXPECT_EQ(refused("RLK_LOG", "loud"),
            "RLK_LOG: expected trace, debug, info, warn, error or off, got \"loud\"");
}

TEST(Settings, CachePath) {
  using Folders = std::vector<std::string>;
  EXPECT_EQ(read({{"RLK_CACHE_PATH", "/a"}}).cache_path, Folders{"/a"});
  EXPECT_EQ(read({{"RLK_CACHE_PATH", ":/a::/b:"}}).cache_path, (Folders{"/a", "/b"}));
  EXPECT_TRUE(read({{"RLK_CACHE_PATH", ":"}}).cache_path.empty());
  for (const std::string folder : {"a", "./a", "~/a", " /a"}) {
    EXPECT_EQ(
        refused("RLK_CACHE_PATH", "/first:" + folder),
        "RLK_CACHE_PATH: expected absolute folders separated by colons, got \"" + folder + "\"");
  }
}

// A folder named "~" or "rlk\r" is not what anybody wants.
TEST(Settings, PathsAreTakenOnlyAsTheyCanBeMeant) {
  for (const std::string variable : {"RLK_CACHE_DIR", "RLK_NVRTC", "RLK_TRACE", "RLK_DUMP_DIR"}) {
    EXPECT_EQ(refused(variable, "~/x").find(variable + ": expected a path in full (~"), 0u);
    EXPECT_EQ(refused(variable, "/x\r"),
              variable + ": expected a path without characters that nobody sees, got \"/x\\x0d\"");
    EXPECT_EQ(refused(variable, ""), variable + ": expected a path, got \"\"");
  }
  EXPECT_EQ(refused("RLK_CACHE_PATH", "/a:/b\r"),
            "RLK_CACHE_PATH: expected a path without characters that nobody sees, got "
            "\"/b\\x0d\"");
  EXPECT_EQ(refused("RLK_CACHE_PATH", "/a:/$USER").find("RLK_CACHE_PATH: expected a path in full"),
            0u);
  EXPECT_EQ(read({{"RLK_CACHE_DIR", "./~"}}).cache_dir, "./~");
}

// Also of words and numbers an error shows what nobody sees.
TEST(Settings, WordsAreShownWithAllTheirCharacters) {
  for (const std::string variable : {"RLK_JIT", "RLK_LOG", "RLK_ARCH", "RLK_NUM_THREADS",
                                     "RLK_CACHE_SIZE", "RLK_CACHE_SHARED", "RLK_VALIDATE"}) {
    const std::string said = refused(variable, "sync\r\xff");
    EXPECT_TRUE(said.ends_with("got \"sync\\x0d\\xff\"")) << said;
  }
}

TEST(Settings, FoldersThatOthersNameArePassedOverWithAWarning) {
  const test::CapturedLog log;
  const auto folder = [](const std::optional<std::string>& value) {
    return folder_if_given([&](const char*) { return value; }, "CUDA_HOME");
  };
  EXPECT_EQ(folder({}), std::nullopt);
  EXPECT_EQ(folder("/cuda"), "/cuda");
  EXPECT_EQ(log.text(), "");
  EXPECT_EQ(folder("~/cuda"), std::nullopt);
  EXPECT_TRUE(log.contains("CUDA_HOME: expected a path in full")) << log.text();
  EXPECT_EQ(folder("cuda"), std::nullopt);
  EXPECT_TRUE(log.contains("CUDA_HOME: expected an absolute path, got \"cuda\"")) << log.text();
}

TEST(Settings, CacheShared) {
  EXPECT_EQ(read({{"RLK_CACHE_SHARED", "all"}}).cache_shared, CacheShared::all);
  EXPECT_EQ(read({{"RLK_CACHE_SHARED", "owner"}}).cache_shared, CacheShared::owner);
  for (const std::string text : {"any", "1", "Group", "group "}) {
    EXPECT_EQ(refused("RLK_CACHE_SHARED", text),
              "RLK_CACHE_SHARED: expected owner, group or all, got \"" + text + "\"");
  }
}

TEST(Settings, CacheSize) {
  const std::map<std::string, std::uint64_t> sizes = {
      {"0", 0},
      {"1", 1},
      {"500000", 500000},
      {"500000B", 500000},
      {"3K", 3 << 10},
      {"3KiB", 3 << 10},
      {"3kb", 3000},
      {"512m", 512 << 20},
      {"512MiB", 512 << 20},
      {"512MB", 512000000},
      {"2g", std::uint64_t{2} << 30},
      {"2gib", std::uint64_t{2} << 30},
      {"1GB", 1000000000},
      {"1T", std::uint64_t{1} << 40},
      {"16777215T", std::uint64_t{16777215} << 40},
  };
  for (const auto& [text, bytes] : sizes) {
    EXPECT_EQ(read({{"RLK_CACHE_SIZE", text}}).cache_size_bytes, bytes) << text;
  }
  for (const std::string text : {"G", "1.5G", "-1", "+1", " 1G", "1 G", "1G ", "1E", "1Gi", "1GIBI",
                                 "16777216T", "99999999999999999999", "many", "0x10"}) {
    EXPECT_EQ(
        refused("RLK_CACHE_SIZE", text),
        "RLK_CACHE_SIZE: expected a size such as 500M, 1GiB or 0 (no limit), got \"" + text + "\"");
  }
  EXPECT_TRUE(what<InvalidArgument>([] {
                bytes_named("many", "--max-size", "a size");
              }).starts_with("--max-size: expected a size, got \"many\""));
}

TEST(Settings, Policy) {
  for (const std::string text : {"on", "Off", "1"}) {
    EXPECT_EQ(refused("RLK_JIT", text),
              "RLK_JIT: expected sync, async or off, got \"" + text + "\"");
  }
}

// An error of configure(policy="on") that spoke of RLK_JIT would send its reader to the
// environment.
TEST(Settings, AnErrorNamesWhereTheTextCameFrom) {
  const auto refused = [](std::string_view name, const std::string& text) {
    Settings settings;
    return what<InvalidArgument>(
        [&] { set_value(settings, setting(name), text, fmt::format("configure: {}", name)); });
  };
  EXPECT_EQ(refused("policy", "on"), "configure: policy: expected sync, async or off, got \"on\"");
  EXPECT_EQ(refused("validate", "on"), "configure: validate: expected async or sync, got \"on\"");
  EXPECT_EQ(refused("max_sms", "-1"),  // a number, there
            "configure: max_sms: expected a whole number from 0 to 1048576, got -1");
  EXPECT_TRUE(refused("arch", "on").starts_with("configure: arch: expected a target"));
}

TEST(Settings, AnEmptyVariableIsUnset) {
  ::setenv("RLK_TEST_EMPTY", "", 1);
  EXPECT_EQ(process_environment("RLK_TEST_EMPTY"), std::nullopt);
  ::setenv("RLK_TEST_EMPTY", "x", 1);
  EXPECT_EQ(process_environment("RLK_TEST_EMPTY"), "x");
}

}  // namespace
}  // namespace rlk
