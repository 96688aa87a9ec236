// SPDX-License-Identifier: Apache-2.0
// From settings to cache layers.
#include "jit/layers.hpp"

#include "cache/default_folder.hpp"

namespace rlk::jit {

std::string builtin_folder(const Settings& settings) {
  return (settings.package_folder / "builtin").string();
}

Layers choose_layers(const Settings& settings) {
  cache::FolderEnvironment environment;
  environment.rlk_cache_dir = settings.cache_dir;
  if (!settings.cache_dir) {
    environment = cache::folder_environment(
        [](const char* variable) { return path_in(process_environment, variable); });
  }
  auto folder = cache::default_folder(environment);
  cache::StoreOptions options;
  options.read_write = std::move(folder.path);
  options.read_only = settings.cache_path;
  options.read_only.push_back(builtin_folder(settings));
  // Others whom the owner trusts with a folder of his choice are not those of the temp folder.
  if (!folder.is_temporary) options.sharing = static_cast<cache::Sharing>(settings.cache_shared);
  options.budget_bytes = settings.cache_size_bytes;
  return {std::move(options), std::move(folder.note)};
}

}  // namespace rlk::jit
