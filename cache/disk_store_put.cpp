// SPDX-License-Identifier: Apache-2.0
// What writes to the read-write folder: put, the turn to compile, the sweep.
#include "cache/disk_store.hpp"
#include "cache/entry_name.hpp"
#include "cache/files/lock_place.hpp"
#include "cache/never_throwing.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <algorithm>
#include <cerrno>
#include <thread>

namespace rlk::cache {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Waiting does not cure these, so that each later put would fail the same way.
bool is_lasting(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == ENOSPC || error == EDQUOT;
}

// An eighth of the wait so far: who waits for a short compile goes on soon after it, who waits for
// a long one asks seldom.
milliseconds pause_after(Clock::duration waited) {
  const auto eighth = std::chrono::duration_cast<milliseconds>(waited / 8);
  return std::clamp(eighth, milliseconds(1), milliseconds(100));
}

}  // namespace

bool sleep_for(milliseconds time) {
  std::this_thread::sleep_for(time);
  return true;
}

bool DiskStore::is_writing() const {
  return !layers_.empty() && layers_.front().read_write && !gave_up_writing_;
}

// Makes and checks the folder: 0 or an errno; nothing where it is refused, which is said here.
std::optional<int> DiskStore::make_ready(const std::string& folder) {
  if (const int error = make_folder(files_, folder, sharing_); error != 0) return error;
  const FolderTrust trust = check_folder(files_, folder, sharing_);
  if (!trust.problem.empty()) {
    warn_once(folder, "folder refused: " + trust.problem);
    return std::nullopt;
  }
  return trust.error;
}

bool DiskStore::put(const Entry& entry, std::string_view compiler) noexcept {
  bool is_stored = false;
  never_throwing("put", [&] {
    if (is_writing()) is_stored = put_into(layers_.front().folder, entry, compiler);
  });
  return is_stored;
}

bool DiskStore::put_into(const std::string& folder, const Entry& entry, std::string_view compiler) {
  if (compiler.empty()) throw InvalidArgument("compiler: expected an identity, got \"\"");
  const std::string name = entry_file_name(Key{entry.key}.digest(), compiler);
  const std::string bytes = encode_entry(entry);
  int error = 0;
  // Twice: the folder may be removed between its making and the publishing.
  for (int i = 0; i < 2; ++i) {
    const auto ready = make_ready(folder);
    if (!ready) return false;
    error = *ready != 0 ? *ready : publish(files_, folder, name, bytes, sharing_);
    if (error != ENOENT) break;
  }
  if (error == 0) {
    sweep_if_due(folder);
  } else if (is_lasting(error)) {
    give_up(folder, error);
  } else {
    const std::string problem = fmt::format("put: {}", error_text(error));
    warn_once(problem, fmt::format("{}: entry not stored: {}", folder, problem));
  }
  return error == 0;
}

void DiskStore::give_up(const std::string& folder, int error) {
  if (gave_up_writing_.exchange(true)) return;
  log().warn("cache: {}: not writable ({}); kernels compiled from now on are not stored", folder,
             error_text(error));
}

Turn DiskStore::take_turn(const Key& key, std::string_view compiler, const Pause& pause) noexcept {
  Turn turn;
  never_throwing("lock", [&] {
    if (is_writing()) turn = wait_for_turn(key, compiler, pause);
  });
  return turn;
}

Turn DiskStore::wait_for_turn(const Key& key, std::string_view compiler, const Pause& pause) {
  const Layer& layer = layers_.front();
  const std::string digest = key.digest();
  auto lock = open_lock(layer.folder, digest);
  if (!lock) return {};
  const auto start = Clock::now();
  int error = lock->try_lock();
  if (error == EAGAIN) log().info("cache: another process compiles {}; waiting for it", digest);
  for (; error == EAGAIN; error = lock->try_lock()) {
    // Stored already: by another machine, or the one that has the turn is about to leave.
    if (auto entry = get_from(layer, {key, compiler}))
      return {TurnOutcome::stored, std::move(entry)};
    const auto waited = Clock::now() - start;
    if (waited >= turn_timeout_) {
      warn_once(digest, fmt::format("waited {:.3g} s for another process that compiles {}; it is "
                                    "compiled here too and not stored",
                                    std::chrono::duration<double>(waited).count(), digest));
      return {TurnOutcome::timed_out};
    }
    if (!pause(pause_after(waited))) return {TurnOutcome::cancelled};
  }
  if (error != 0) {
    warn_without_lock(layer.folder, error_text(error));
    return {};
  }
  // Again, since the last one to have the turn may have stored it after our miss.
  auto entry = get_from(layer, {key, compiler});
  const auto outcome = entry ? TurnOutcome::stored : TurnOutcome::compile;
  return {outcome, std::move(entry), std::move(lock)};
}

// Null where there can be no lock, which is said here.
std::unique_ptr<FileLock> DiskStore::open_lock(const std::string& folder,
                                               const std::string& digest) {
  const auto ready = make_ready(folder);
  if (!ready) return nullptr;
  if (*ready != 0) {
    // As for a put, but a put that follows says it of what is no lasting trouble.
    if (is_lasting(*ready)) give_up(folder, *ready);
    return nullptr;
  }
  const LockPlace place = lock_place(files_, folder, local_folders_);
  if (place.path.empty()) {
    warn_without_lock(folder, place.problem);
    return nullptr;
  }
  auto lock = std::make_unique<FileLock>(files_, place.path, sharing_, byte_of_key(digest));
  if (lock->error() == 0) return lock;
  if (is_refusal(lock->error())) return nullptr;  // what is to be locked for meets it too
  if (is_lasting(lock->error()) && !could_write(files_, folder)) {
    give_up(folder, lock->error());
  } else {
    warn_without_lock(folder, fmt::format("{}: {}", place.path, error_text(lock->error())));
  }
  return nullptr;
}

void DiskStore::warn_without_lock(const std::string& folder, const std::string& problem) {
  warn_once(
      "lock: " + problem,
      fmt::format("{}: no lock ({}); several processes may compile one kernel", folder, problem));
}

void DiskStore::sweep_if_due(const std::string& folder) {
  if (!is_sweep_due(files_, folder)) return;
  // Where there can be no lock, two sweeps may meet and remove the same entries: no harm.
  const LockPlace place = lock_place(files_, folder, local_folders_);
  std::optional<FileLock> lock;
  if (!place.path.empty()) lock.emplace(files_, place.path, sharing_, k_sweep_byte);
  if (lock && lock->try_lock() == EAGAIN) return;
  const auto claimed = claim_sweep(files_, folder, sharing_);
  Swept swept;
  if (!claimed) swept.problem = fmt::format("{}/.swept: {}", folder, error_text(claimed.error));
  if (claimed.value) {
    SweepLimits limits;
    if (budget_bytes_ > 0) limits = {budget_bytes_, budget_bytes_ / 5 * 4, {}};
    swept = sweep(files_, folder, limits);
    log().info("cache: {}: swept: {} entries ({} bytes) removed, {} ({} bytes) kept", folder,
               swept.num_removed, swept.removed_bytes, swept.num_entries, swept.bytes);
  }
  if (!swept.problem.empty()) {
    warn_once("sweep: " + swept.problem, "not swept to its budget: " + swept.problem);
  }
}

}  // namespace rlk::cache
