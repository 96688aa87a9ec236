// SPDX-License-Identifier: Apache-2.0
// A file that appears whole, by rename, or not at all.
#pragma once

#include "cache/files/file_system.hpp"
#include "cache/files/open_file.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace rlk::cache {

// Written under another name, and removed again unless it is published. Once a step fails the later
// ones do nothing, so that the error of the last one tells of all.
class NewFile {
 public:
  // Makes `temp_path`, which must not be there yet: error() is EEXIST then. `mode` is given
  // whatever the umask; without one, as the umask says.
  NewFile(FileSystem& files, std::string temp_path, std::optional<mode_t> mode);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  int error() const { return error_; }

  // 0 or the errno of the step that failed.
  int write(std::string_view bytes);
  // Syncs, closes and renames to `path` in the same folder, then syncs the folder.
  int publish(const std::string& path);

 private:
  FileSystem& files_;
  std::string temp_path_;
  OpenFile file_;
  int error_ = 0;
  bool is_ours_ = false;  // there is a temp file to remove
};

// A name beside `path` that nobody else uses.
std::string name_beside(const std::string& path);

}  // namespace rlk::cache
