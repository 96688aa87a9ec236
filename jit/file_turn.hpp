// SPDX-License-Identifier: Apache-2.0
// One writer at a time of a small file in the read-write folder that is read, added to and
// replaced.
#pragma once

#include "cache/disk_store.hpp"
#include "cache/files/file_lock.hpp"

#include <cstdint>
#include <optional>

namespace rlk::jit {

// Waits as long as another writes, which takes milliseconds; without a lock one may be lost.
class FileTurn {
 public:
  FileTurn(const cache::StoreOptions& store, std::uint64_t byte);

 private:
  std::optional<cache::FileLock> lock_;
};

}  // namespace rlk::jit
