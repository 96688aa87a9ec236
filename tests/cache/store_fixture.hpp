// SPDX-License-Identifier: Apache-2.0
// What the tests of the disk store share: a folder, a log, entries made from a number.
#pragma once

#include "cache/disk_store.hpp"
#include "cache/entry_name.hpp"
#include "tests/support/captured_log.hpp"
#include "tests/support/temp_dir.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <utime.h>

#include <filesystem>
#include <string>
#include <vector>

namespace rlk::cache {

inline constexpr const char* compiler_a = "llvm-19.1.7";
inline constexpr const char* compiler_b = "llvm-20.1.0";

inline Key key_of(int number) {
  return KeyBuilder().field("op", "toy").field("number", std::to_string(number)).finish();
}

// `fill` tells entries of one key apart.
inline Entry entry_of(int number, std::string_view fill = "payload") {
  Entry entry{key_of(number).bytes, R"({"name":"toy"})", {}};
  for (int i = 0; i < 100; ++i) {
    for (const char c : fill) entry.payload.push_back(static_cast<std::byte>(c));
  }
  return entry;
}

inline mode_t mode_of(const std::string& path) {
  return posix_file_system().stat(path, Links::keep).value.mode;
}

// Names of all files in a folder but the two that stay, sorted; none if it is absent.
inline std::vector<std::string> names_in(const std::string& folder) {
  auto names = posix_file_system().list(folder).value;
  std::erase_if(names, [](const auto& name) { return name == ".swept" || name == ".lock"; });
  std::ranges::sort(names);
  return names;
}

inline void set_age(const std::string& path, int seconds) {
  const utimbuf times{std::time(nullptr) - seconds, std::time(nullptr) - seconds};
  if (::utime(path.c_str(), &times) != 0) throw std::runtime_error("utime: " + path);
}

class StoreTest : public testing::Test {
 protected:
  DiskStore store(FileSystem& files = posix_file_system()) const {
    return DiskStore({.read_write = folder_}, files);
  }

  // A read-only layer that holds the entry already.
  std::string layer_with(const std::string& name, const Entry& entry, std::string_view compiler) {
    const std::string folder = temp_ / name;
    DiskStore({.read_write = folder}).put(entry, compiler);
    return folder;
  }

  std::string path_of(int number, std::string_view compiler = compiler_a) const {
    return folder_ + '/' + entry_file_name(key_of(number).digest(), compiler);
  }

  test::TempDir temp_;
  std::string folder_ = temp_ / "cache";
  test::CapturedLog log_;
};

}  // namespace rlk::cache
