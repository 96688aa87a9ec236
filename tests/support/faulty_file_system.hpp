// SPDX-License-Identifier: Apache-2.0
// The real file system with faults: the n-th call fails, a verb always fails, short counts, a full
// or read-only disk, a power cut that loses what was not synced. For one thread.
#pragma once

#include "cache/files/file_system.hpp"
#include "tests/support/temp_dir.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::test {

using cache::FileStat;
using cache::FileSystem;
using cache::Links;
using cache::Outcome;

class FaultyFileSystem final : public FileSystem {
 public:
  // Calls are counted from 1. `fail_call` hits one call, `fail_from` that and all later ones.
  void fail_call(int index, int error) { first_ = last_ = index, error_ = error; }
  void fail_from(int index, int error) {
    first_ = index, last_ = std::numeric_limits<int>::max(), error_ = error;
  }
  // The next `num_times` calls of this verb fail.
  void fail_verb(const std::string& verb, int error, int num_times = 1 << 30) {
    verbs_[verb] = {error, num_times};
  }
  void set_most_bytes_a_call(std::size_t most) { most_bytes_a_call_ = most; }
  void set_space_bytes(std::size_t space) { space_bytes_ = space; }
  void set_read_only() { read_only_ = true; }
  void set_network_folder(const std::string& folder) { network_folder_ = folder; }
  // Seen before each call, to change the world in between.
  void set_observer(std::function<void(std::string_view verb)> observer) {
    observer_ = std::move(observer);
  }

  int num_calls() const { return num_calls_; }
  int num_calls(const std::string& verb) const {
    const auto found = counts_.find(verb);
    return found == counts_.end() ? 0 : found->second;
  }

  // As after a power cut: bytes that were not fsynced and renames whose folder was not are lost.
  void cut_power() {
    for (auto undo = renames_.rbegin(); undo != renames_.rend(); ++undo) {
      std::error_code ignored;
      std::filesystem::rename(undo->to, undo->from, ignored);
      if (undo->replaced) write_file(undo->to, *undo->replaced);
    }
    renames_.clear();
    for (const auto& [path, synced_bytes] : synced_) {
      if (std::filesystem::exists(path)) std::filesystem::resize_file(path, synced_bytes);
    }
  }

  Outcome<int> open(const std::string& path, int flags, mode_t mode) override {
    if (const int error = fault("open", (flags & O_CREAT) != 0)) return {-1, error};
    const auto opened = real_.open(path, flags, mode);
    if (opened) {
      paths_[opened.value] = path;
      if ((flags & O_CREAT) != 0) synced_[path] = 0;
    }
    return opened;
  }
  Outcome<std::size_t> read(int file, void* to, std::size_t num_bytes) override {
    if (const int error = fault("read")) return {0, error};
    return real_.read(file, to, std::min(num_bytes, most_bytes_a_call_));
  }
  Outcome<std::size_t> write(int file, const void* from, std::size_t num_bytes) override {
    if (const int error = fault("write")) return {0, error};
    if (space_bytes_ == 0) return {0, ENOSPC};
    num_bytes = std::min({num_bytes, most_bytes_a_call_, space_bytes_});
    space_bytes_ -= num_bytes;
    return real_.write(file, from, num_bytes);
  }
  Outcome<FileStat> stat_open(int file) override {
    if (const int error = fault("stat_open")) return {{}, error};
    return real_.stat_open(file);
  }
  int chmod_open(int file, mode_t mode) override {
    if (const int error = fault("chmod_open", true)) return error;
    return real_.chmod_open(file, mode);
  }
  int fsync(int file) override {
    if (const int error = fault("fsync")) return error;
    const std::string path = paths_[file];
    if (std::filesystem::is_directory(path)) {
      std::erase_if(renames_, [&](const Rename& rename) {
        return std::filesystem::path(rename.to).parent_path() == path;
      });
    } else {
      synced_[path] = std::filesystem::file_size(path);
    }
    return 0;  // cut_power() knows what is synced; the disk's milliseconds would prove no more
  }
  int touch(int file) override {
    if (const int error = fault("touch", true)) return error;
    return real_.touch(file);
  }
  int close(int file) override {
    // Closed in any case, as the kernel does: the error tells of earlier writes.
    const int error = fault("close");
    paths_.erase(file);
    const int real_error = real_.close(file);
    return error != 0 ? error : real_error;
  }
  int lock_byte(int file, std::uint64_t at) override {
    if (const int error = fault("lock_byte")) return error;
    return real_.lock_byte(file, at);
  }
  int unlock_byte(int file, std::uint64_t at) override {
    // Dropped in any case, as by the close that follows.
    const int error = fault("unlock_byte");
    const int real_error = real_.unlock_byte(file, at);
    return error != 0 ? error : real_error;
  }
  Outcome<FileStat> stat(const std::string& path, Links links) override {
    if (const int error = fault("stat")) return {{}, error};
    return real_.stat(path, links);
  }
  Outcome<std::vector<std::string>> list(const std::string& folder) override {
    if (const int error = fault("list")) return {{}, error};
    return real_.list(folder);
  }
  int access(const std::string& path, int rights) override {
    if (const int error = fault("access", (rights & W_OK) != 0)) return error;
    return real_.access(path, rights);
  }
  int chmod(const std::string& path, mode_t mode) override {
    if (const int error = fault("chmod", true)) return error;
    return real_.chmod(path, mode);
  }
  int mkdir(const std::string& path, mode_t mode) override {
    if (const int error = fault("mkdir", true)) return error;
    return real_.mkdir(path, mode);
  }
  int rename(const std::string& from, const std::string& to) override {
    if (const int error = fault("rename", true)) return error;
    Rename rename{from, to, {}};
    if (std::filesystem::is_regular_file(to)) rename.replaced = read_file(to);
    const int error = real_.rename(from, to);
    if (error == 0) {
      synced_[to] = synced_[from];
      synced_.erase(from);
      // Undone by cut_power, after which the bytes lie under the old name again.
      synced_[from] = synced_[to];
      renames_.push_back(rename);
    }
    return error;
  }
  int unlink(const std::string& path) override {
    if (const int error = fault("unlink", true)) return error;
    synced_.erase(path);
    return real_.unlink(path);
  }
  Outcome<bool> is_node_local(const std::string& path) override {
    if (const int error = fault("is_node_local")) return {false, error};
    return {!path.starts_with(network_folder_) && real_.is_node_local(path).value};
  }

 private:
  struct Rename {
    std::string from;
    std::string to;
    std::optional<std::string> replaced;  // the bytes that `to` held
  };
  struct VerbFault {
    int error = 0;
    int num_times = 0;
  };

  int fault(const std::string& verb, bool changes_disk = false) {
    if (observer_) observer_(verb);
    ++num_calls_;
    ++counts_[verb];
    if (num_calls_ >= first_ && num_calls_ <= last_) return error_;
    if (changes_disk && read_only_) return EROFS;
    VerbFault& set = verbs_[verb];
    return set.num_times > 0 && set.num_times-- > 0 ? set.error : 0;
  }

  FileSystem& real_ = cache::posix_file_system();
  int num_calls_ = 0;
  std::map<std::string, int> counts_;
  int first_ = std::numeric_limits<int>::max();
  int last_ = 0;
  int error_ = 0;
  std::map<std::string, VerbFault> verbs_;
  std::size_t most_bytes_a_call_ = std::numeric_limits<std::size_t>::max();
  std::size_t space_bytes_ = std::numeric_limits<std::size_t>::max();
  bool read_only_ = false;
  std::string network_folder_ = "nowhere";
  std::function<void(std::string_view)> observer_;
  std::map<int, std::string> paths_;             // of open files
  std::map<std::string, std::uint64_t> synced_;  // bytes that survive a power cut
  std::vector<Rename> renames_;                  // whose folder was not synced
};

}  // namespace rlk::test
