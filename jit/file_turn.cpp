// SPDX-License-Identifier: Apache-2.0
// A byte of the folder's lock.
#include "jit/file_turn.hpp"

#include "cache/files/lock_place.hpp"

#include <cerrno>
#include <chrono>
#include <thread>

namespace rlk::jit {

FileTurn::FileTurn(const cache::StoreOptions& store, std::uint64_t byte) {
  cache::FileSystem& files = cache::posix_file_system();
  const auto place = cache::lock_place(files, *store.read_write, store.local_folders);
  if (place.path.empty()) return;
  lock_.emplace(files, place.path, store.sharing, byte);
  for (int i = 0; i < 500 && lock_->error() == 0 && lock_->try_lock() == EAGAIN; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace rlk::jit
