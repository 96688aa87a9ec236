// SPDX-License-Identifier: Apache-2.0
// Which folders the settings name as cache layers: the same for the dispatcher and the inspector.
#pragma once

#include "cache/disk_store.hpp"
#include "runtime/settings.hpp"

#include <string>

namespace rlk::jit {

struct Layers {
  cache::StoreOptions options;
  std::string note;  // why the read-write folder is not where one expects it, to be said once
};

// The built-in layer of a package.
std::string builtin_folder(const Settings& settings);

// Looks at the environment and the disk, makes nothing.
Layers choose_layers(const Settings& settings);

}  // namespace rlk::jit
