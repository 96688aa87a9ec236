// SPDX-License-Identifier: Apache-2.0
// Writes a file under another name and renames it.
#include "cache/files/new_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <random>
#include <tuple>

namespace rlk::cache {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
}

}  // namespace

NewFile::NewFile(FileSystem& files, std::string temp_path, std::optional<mode_t> mode)
    : files_(files),
      temp_path_(std::move(temp_path)),
      file_(files, temp_path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode.value_or(0666)),
      error_(file_.error()),
      is_ours_(error_ == 0) {
  // The umask may have taken rights away. Some mounts know no modes; who reads the file looks.
  if (error_ == 0 && mode) std::ignore = files_.chmod_open(file_.number(), *mode);
}

NewFile::~NewFile() {
  file_.close();
  if (is_ours_) files_.unlink(temp_path_);
}

int NewFile::write(std::string_view bytes) {
  if (error_ == 0) error_ = file_.write(bytes.data(), bytes.size());
  return error_;
}

int NewFile::publish(const std::string& path) {
  if (error_ == 0) error_ = file_.fsync();
  const int close_error = file_.close();  // network file systems report a full disk here
  if (error_ == 0) error_ = close_error;
  if (error_ != 0) return error_;
  error_ = uninterrupted([&] { return Outcome<int>{0, files_.rename(temp_path_, path)}; }).error;
  if (error_ != 0) return error_;
  is_ours_ = false;
  // The file is whole and visible; a power cut may still lose the name, never half of it.
  OpenFile folder(files_, folder_of(path), O_RDONLY | O_DIRECTORY);
  if (folder.error() == 0) folder.fsync();
  return 0;
}

std::string name_beside(const std::string& path) {
  // Not the pid: on a network file system another node may have the same.
  std::random_device random;
  return fmt::format("{}.{:08x}{:08x}.tmp", path, random(), random());
}

}  // namespace rlk::cache
