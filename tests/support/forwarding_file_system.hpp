// SPDX-License-Identifier: Apache-2.0
// The real file system behind virtual calls, for fakes that change one of them.
#pragma once

#include "cache/files/file_system.hpp"

#include <string>
#include <vector>

namespace rlk::test {

class ForwardingFileSystem : public cache::FileSystem {
 public:
  template <class T>
  using Outcome = cache::Outcome<T>;

  Outcome<int> open(const std::string& path, int flags, mode_t mode) override {
    return real_.open(path, flags, mode);
  }
  Outcome<std::size_t> read(int file, void* to, std::size_t num_bytes) override {
    return real_.read(file, to, num_bytes);
  }
  Outcome<std::size_t> write(int file, const void* from, std::size_t num_bytes) override {
    return real_.write(file, from, num_bytes);
  }
  Outcome<cache::FileStat> stat_open(int file) override { return real_.stat_open(file); }
  int chmod_open(int file, mode_t mode) override { return real_.chmod_open(file, mode); }
  int fsync(int file) override { return real_.fsync(file); }
  int touch(int file) override { return real_.touch(file); }
  int close(int file) override { return real_.close(file); }
  int lock_byte(int file, std::uint64_t at) override { return real_.lock_byte(file, at); }
  int unlock_byte(int file, std::uint64_t at) override { return real_.unlock_byte(file, at); }
  Outcome<cache::FileStat> stat(const std::string& path, cache::Links links) override {
    return real_.stat(path, links);
  }
  Outcome<std::vector<std::string>> list(const std::string& folder) override {
    return real_.list(folder);
  }
  int access(const std::string& path, int rights) override { return real_.access(path, rights); }
  int chmod(const std::string& path, mode_t mode) override { return real_.chmod(path, mode); }
  int mkdir(const std::string& path, mode_t mode) override { return real_.mkdir(path, mode); }
  int rename(const std::string& from, const std::string& to) override {
    return real_.rename(from, to);
  }
  int unlink(const std::string& path) override { return real_.unlink(path); }
  Outcome<bool> is_node_local(const std::string& path) override {
    return real_.is_node_local(path);
  }

 private:
  cache::FileSystem& real_ = cache::posix_file_system();
};

}  // namespace rlk::test
