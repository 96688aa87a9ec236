// SPDX-License-Identifier: Apache-2.0
// Verifies a pack, then stores its entries.
#include "cache/import_pack.hpp"

#include "cache/entry_name.hpp"
#include "cache/files/open_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <vector>

namespace rlk::cache {
namespace {

PackRead read_file(FileSystem& files, const std::string& path, const TakeMember& take) {
  // O_NONBLOCK: opening a FIFO for reading would else wait for a writer.
  OpenFile file(files, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (file.error() != 0) return {fmt::format("open: {}", error_text(file.error()))};
  const auto stat = files.stat_open(file.number());
  if (!stat) return {fmt::format("stat: {}", error_text(stat.error))};
  if (stat.value.kind != FileKind::regular) return {"expected a regular file, got something else"};
  return read_pack([&](void* to, std::size_t num_bytes) { return file.read(to, num_bytes); },
                   stat.value.size_bytes, take);
}

class Importer {
 public:
  Importer(const StoreOptions& options, const PackToImport& pack, FileSystem& files)
      : pack_(pack),
        files_(files),
        folder_(options.read_write.value_or("")),
        store_(options, files) {}

  Imported run() {
    if (verify()) store();
    return std::move(done_);
  }

 private:
  bool verify() {
    const PackRead read = read_file(files_, pack_.path, [&](const PackMember& member) {
      seen_.push_back(member.sha256_so_far);
      return pack_.judge(member);
    });
    done_.problem = read.problem;
    if (done_.problem.empty() && pack_.sha256 && *pack_.sha256 != read.sha256) {
      done_.problem = fmt::format("SHA-256: expected {}, got {}", *pack_.sha256, read.sha256);
    }
    done_.sha256 = read.sha256;
    done_.num_entries = read.num_entries;
    return done_.problem.empty();
  }

  void store() {
    std::size_t index = 0;
    constexpr std::string_view changed = "it has changed while it was read";
    const PackRead read = read_file(files_, pack_.path, [&](const PackMember& member) {
      if (index >= seen_.size() || member.sha256_so_far != seen_[index]) {
        return std::string(changed);
      }
      ++index;
      store(member);
      return std::string();
    });
    done_.problem = read.problem.empty() && index < seen_.size() ? changed : read.problem;
  }

  void store(const PackMember& member) {
    const auto parsed = parse_entry_file_name(member.name);
    const ListedEntry here{.layer = {folder_, true},
                           .path = folder_ + '/' + member.name,
                           .digest = parsed->digest,
                           .compiler = parsed->compiler};
    if (const EntryRead read = store_.read(here);
        read.status == ReadStatus::ok && read.entry == member.entry) {
      ++done_.num_present;
    } else if (store_.put(member.entry, parsed->compiler)) {
      ++done_.num_stored;
    } else {
      ++done_.num_failed;
      return;
    }
    pack_.kept(member);
  }

  const PackToImport& pack_;
  FileSystem& files_;
  std::string folder_;
  DiskStore store_;
  std::vector<Sha256::Digest> seen_;  // of the pack up to each entry's end
  Imported done_;
};

}  // namespace

Imported import_pack(const StoreOptions& store, const PackToImport& pack, FileSystem& files) {
  return Importer(store, pack, files).run();
}

}  // namespace rlk::cache
