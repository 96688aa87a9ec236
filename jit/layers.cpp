// SPDX-License-Identifier: Apache-2.0
// From settings to cache layers.
#include "jit/layers.hpp"

#include "cache/default_folder.hpp"

namespace rlk::jit {

std::string builtin_folder(const Settings& settings) {
  return (settings.package_folder / "builtin").string();
}

Layers choose_layers(const Settings& settings) {
  auto environment = cache::folder_environment(process_environment);
  environment.rlk_cache_dir = settings.cache_dir;
  auto folder = cache::default_folder(environment);
  cache::StoreOptions options;
  options.read_write = std::move(folder.path);
  options.read_only = settings.cache_path;
  options.read_only.push_back(builtin_folder(settings));
  options.sharing = settings.cache_shared_by_group ? cache::Sharing::group : cache::Sharing::owner;
  options.budget_bytes = settings.cache_size_bytes;
  return {std::move(options), std::move(folder.note)};
}

}  // namespace rlk::jit
