// SPDX-License-Identifier: Apache-2.0
// The entries on disk: one read-write folder over read-only ones. Best effort by design: get gives
// an entry or nothing, put gives nothing, neither throws; each trouble is logged once.
//
// An entry is one file, `<digest>.<compiler>.rlk`, digest being its key's. A file appears whole, by
// rename, and is never changed afterwards but for its modification time, so that a reader needs no
// lock and an entry may be replaced or vanish at any time.
//
//   found                                        get             afterwards
//   no such file                                 miss
//   damage (short, magic, version, checksum,     miss, logged    the next put replaces it by
//   rename;
//     other key)                                                 never unlinked under its readers
//   I/O error                                    miss, logged    nothing is touched
//   refused (owner, rights, no regular file)     miss, logged    as damage; a folder: no put either
#pragma once

#include "cache/entry.hpp"
#include "cache/entry_file.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/folder.hpp"
#include "cache/files/trust.hpp"
#include "cache/key.hpp"
#include "cache/sweep.hpp"
#include "cache/turn.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::cache {

struct StoreOptions {
  std::optional<std::string> read_write = {};  // absolute folder, made at the first turn or put
  std::vector<std::string> read_only = {};     // absolute folders in order, the built-in layer last
  Sharing sharing = Sharing::owner;            // who else may write the read-write folder
  std::uint64_t budget_bytes = 0;              // of the read-write folder; 0: no limit
  std::chrono::milliseconds turn_timeout = k_turn_timeout;
  // Where locks lie if the read-write folder is on a network file system: the first that is of this
  // machine alone. Not $TMPDIR, in which the processes of one machine may differ.
  std::vector<std::string> local_folders = {"/tmp", "/dev/shm"};
};

struct Layer {
  std::string folder;
  bool read_write = false;
};

// A layer's folder as it is now, for `rlk-jit doctor`.
struct LayerState {
  Layer layer;
  bool exists = false;
  bool writable = false;  // an absent folder: whether it could be made
  std::string problem;    // why it is not used, or not readable; empty if all is well
};

// An entry's file as a listing shows it; the payload is not read, nor the checksum verified.
struct ListedEntry {
  Layer layer;
  std::string path;
  std::string digest;        // from the file's name
  std::string compiler;      // from the file's name
  bool is_there = false;     // whether read_headers found it; the rest is known then
  std::string problem = {};  // why a get would not use it; empty if its header is sound
  std::string key = {};
  std::string metadata = {};
  std::uint64_t payload_bytes = 0;
  std::uint64_t file_bytes = 0;
  std::int64_t modified_s = 0;  // last use, to the hour
};

// Whether an entry is of use to who asked, who may find that only by loading it.
using Accept = std::function<bool(const Entry&)>;

// A file that a look-up comes to, or a folder that it does not look into.
struct Candidate {
  Layer layer;
  std::string path;
  std::string compiler = {};  // "" of a folder
  std::string problem = {};   // why it is passed over; empty: the look-up gives this one
};

inline bool is_hit(const std::vector<Candidate>& candidates) {
  return !candidates.empty() && candidates.back().problem.empty();
}

// Thread-safe. Nothing is touched on disk before the first call.
class DiskStore {
 public:
  explicit DiskStore(StoreOptions options, FileSystem& files = posix_file_system());

  // `compiler` is the identity of the compiler at hand, "" if there is none. With one, the
  // read-write layer wants an exact match; without, and in read-only layers, any entry of the key
  // will do: the exact one before the newest. Layers are tried in order.
  // Where `accept` says no, the next candidate is tried. Where the system has no file descriptor or
  // memory left to read one with, `refusal` says so, if given, in place of the log.
  std::optional<Entry> get(const Key& key, std::string_view compiler, const Accept& accept = {},
                           std::string* refusal = nullptr) noexcept;

  // What the same get comes to, in order, up to the entry that it gives. Logs and touches nothing.
  std::vector<Candidate> trace(const Key& key, std::string_view compiler) noexcept;

  // Publishes the entry under its key and compiler, replacing one that is there. Once permission or
  // space is found missing, all later puts do nothing. At most hourly, over all processes, it then
  // removes the entries over the budget, down to 80 % of it. Whether it is stored now.
  bool put(const Entry& entry, std::string_view compiler) noexcept;

  // After a miss, before a compile: waits while another process or thread has the turn for this key
  // and compiler, until the entry is stored, the turn is free or the time is out. Without a folder
  // that can be written or a lock that can be had, the turn is free.
  Turn take_turn(const Key& key, std::string_view compiler,
                 const Pause& pause = sleep_for) noexcept;

  // Removes entries of the read-write layer now, and what killed writers left there.
  Swept prune(const SweepLimits& limits) noexcept;

  // Removes all of them, and the counts of uses. Locks stay, and what is not the cache's.
  Swept clear() noexcept;

  // Removes one entry of the read-write layer. Empty, also where it has vanished already; else why
  // it is still there.
  std::string remove(const ListedEntry& entry) noexcept;

  // Every entry of every layer, in layer order; files that vanish meanwhile are left out.
  std::vector<ListedEntry> list() noexcept;

  // The two halves of list, so that several threads may read: the files by name alone, then what
  // stands in them.
  std::vector<ListedEntry> files() noexcept;
  void read_headers(std::span<ListedEntry> entries) noexcept;

  // Reads a listed entry whole and judges it as a get does: also its checksum and its key.
  EntryRead read(const ListedEntry& entry) noexcept;

  std::vector<LayerState> layers() noexcept;

 private:
  struct LookUp {
    const Key& key;
    std::string_view compiler;
    const Accept* accept = nullptr;
    std::vector<Candidate>* trace = nullptr;  // null: trouble is logged, a hit's use is stamped
    std::string* refusal = nullptr;           // see get
  };

  std::optional<Entry> get_from(const Layer& layer, const LookUp& asked);
  std::optional<Entry> get_file(const Layer& layer, const std::string& name, const LookUp& asked);
  // The id is that of warn_once; the error is an errno, or 0.
  void pass_over(const LookUp& asked, Candidate candidate, int error, const std::string& id,
                 const std::string& message);
  ReadRules read_rules(const Layer& layer) const;
  std::vector<std::string> names_of(const Layer& layer, const std::string& digest,
                                    const LookUp& asked);
  bool is_writing() const;
  std::optional<int> make_ready(const std::string& folder);
  bool put_into(const std::string& folder, const Entry& entry, std::string_view compiler);
  Turn wait_for_turn(const Key& key, std::string_view compiler, const Pause& pause);
  std::unique_ptr<FileLock> open_lock(const std::string& folder, const std::string& digest);
  void warn_without_lock(const std::string& folder, const std::string& problem);
  void sweep_if_due(const std::string& folder);
  std::string refusal();
  std::string remove_file(const std::string& path);
  void give_up(const std::string& folder, int error);
  void warn_once(const std::string& id, const std::string& message);

  std::vector<Layer> layers_;
  Sharing sharing_;
  std::uint64_t budget_bytes_;
  std::chrono::milliseconds turn_timeout_;
  std::vector<std::string> local_folders_;
  FileSystem& files_;
  std::atomic<bool> gave_up_writing_ = false;
  std::mutex warned_mutex_;
  std::set<std::string> warned_;
};

}  // namespace rlk::cache
