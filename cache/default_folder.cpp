// SPDX-License-Identifier: Apache-2.0
// Chooses the read-write folder.
#include "cache/default_folder.hpp"

#include "cache/files/folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <random>

namespace rlk::cache {
namespace {

std::string absolute(const std::string& path) {
  std::error_code error;
  const auto made = std::filesystem::absolute(path, error).lexically_normal();
  return error ? path : made.string();
}

// The value, unless it is relative, which the note then tells.
std::optional<std::string> absolute_only(const std::optional<std::string>& path,
                                         std::string_view variable, std::string& note) {
  if (!path || path->empty()) return std::nullopt;
  if (path->front() == '/') return path;
  note += fmt::format("{}{}: expected an absolute path, got \"{}\", which counts as unset",
                      note.empty() ? "" : "; ", variable, *path);
  return std::nullopt;
}

bool is_folder(FileSystem& files, const std::string& path) {
  const auto stat = files.stat(path, Links::follow);
  return stat && stat.value.kind == FileKind::folder;
}

// The folder is there already, perhaps read-only but full of entries, or could be made.
bool is_of_use(FileSystem& files, const std::string& folder) {
  return is_folder(files, folder) || could_write(files, folder);
}

std::optional<std::string> temp_folder(const std::string& parent, FileSystem& files) {
  if (!is_folder(files, parent) || !could_write(files, parent)) return std::nullopt;
  // The name is known to all, so that what lies there may be planted: then one that nobody can
  // guess.
  std::string known = absolute(fmt::format("{}/rlk-{}", parent, ::geteuid()));
  const FolderTrust trust = check_folder(files, known, Sharing::owner);
  const bool is_sound = trust.problem.empty() && (trust.error == 0 || trust.error == ENOENT);
  if (is_sound) return known;
  std::random_device random;
  return fmt::format("{}-{:08x}{:08x}", known, random(), random());
}

DefaultFolder choose(const FolderEnvironment& environment, FileSystem& files) {
  if (environment.rlk_cache_dir && !environment.rlk_cache_dir->empty()) {
    return {absolute(*environment.rlk_cache_dir), {}};
  }
  std::string note;
  const auto found = [&](std::string folder) { return DefaultFolder{std::move(folder), note}; };
  std::string reason = "no home folder";
  if (const auto xdg = absolute_only(environment.xdg_cache_home, "XDG_CACHE_HOME", note)) {
    const std::string folder = absolute(*xdg + "/rlk");
    if (is_of_use(files, folder)) return found(folder);
    reason = folder + " cannot be written";
  } else if (const auto home = absolute_only(environment.home, "HOME", note)) {
    const std::string folder = absolute(*home + "/.cache/rlk");
    // A home that does not exist ("/nonexistent") is not made.
    if (is_folder(files, *home) && is_of_use(files, folder)) return found(folder);
    reason = folder + " cannot be written";
  }
  const auto parent = absolute_only(environment.tmpdir, "TMPDIR", note).value_or("/tmp");
  const auto folder = temp_folder(parent, files);
  if (!note.empty()) note += "; ";
  const std::string where =
      folder
          ? "kernels are stored in " + *folder
          : fmt::format("nor is {} a folder to write to; compiled kernels are not stored", parent);
  note += fmt::format("{}; {}; set RLK_CACHE_DIR to a folder that lasts", reason, where);
  return {folder, note, true};
}

}  // namespace

FolderEnvironment folder_environment(
    const std::function<std::optional<std::string>(const char* variable)>& lookup) {
  return {lookup("RLK_CACHE_DIR"), lookup("XDG_CACHE_HOME"), lookup("HOME"), lookup("TMPDIR")};
}

DefaultFolder default_folder(const FolderEnvironment& environment, FileSystem& files) {
  try {
    return choose(environment, files);
  } catch (const std::exception& error) {
    return {std::nullopt, fmt::format("no cache folder: {}", error.what())};
  }
}

}  // namespace rlk::cache
