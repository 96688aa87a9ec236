// SPDX-License-Identifier: Apache-2.0
// manifest.json in a cache folder: which kernels it was filled with on purpose, so which a process
// should load ahead of its first call. docs/cache-format.md has its form.
#pragma once

#include "cache/disk_store.hpp"
#include "jit/specialization.hpp"

#include <string>
#include <vector>

namespace rlk::jit {

inline constexpr const char* k_manifest_name = "manifest.json";

// The kernels' names, in order. None where there is no manifest; a warning where it is no good.
std::vector<std::string> read_manifest(const std::string& folder);

// Adds names to the folder's manifest, by rename, and makes the folder. Two that do so at once take
// turns. Throws Error where it cannot be written.
void add_to_manifest(const cache::StoreOptions& store, const std::vector<std::string>& names);

// Drops the names of kernels that the folder does not hold any more: what was removed on purpose is
// not to be missed by a strict preload.
void trim_manifest(const cache::StoreOptions& store, Ops ops);

}  // namespace rlk::jit
