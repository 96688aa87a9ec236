// SPDX-License-Identifier: Apache-2.0
// Gets and lists entries over the layers.
#include "cache/disk_store.hpp"

#include "cache/entry_name.hpp"
#include "cache/never_throwing.hpp"
#include "runtime/log.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>

namespace rlk::cache {
namespace {

constexpr std::int64_t k_touch_after_s = 3600;
constexpr const char* k_other_key_problem = "holds another key than its name says";

std::string without_trailing_slash(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

bool is_absent(int error) { return error == ENOENT || error == ENOTDIR; }
}  // namespace

DiskStore::DiskStore(StoreOptions options, FileSystem& files)
    : sharing_(options.sharing),
      budget_bytes_(options.budget_bytes),
      turn_timeout_(options.turn_timeout),
      local_folders_(std::move(options.local_folders)),
      files_(files) {
  if (options.read_write) layers_.push_back({without_trailing_slash(*options.read_write), true});
  for (auto& folder : options.read_only) {
    layers_.push_back({without_trailing_slash(std::move(folder)), false});
  }
}

std::optional<Entry> DiskStore::get(const Key& key, std::string_view compiler, const Accept& accept,
                                    std::string* refusal) noexcept {
  std::optional<Entry> entry;
  never_throwing("get", [&] {
    for (std::size_t i = 0; i < layers_.size() && !entry; ++i) {
      entry = get_from(layers_[i], {key, compiler, &accept, nullptr, refusal});
    }
  });
  return entry;
}

std::vector<Candidate> DiskStore::trace(const Key& key, std::string_view compiler) noexcept {
  std::vector<Candidate> found;
  never_throwing("trace", [&] {
    for (std::size_t i = 0; i < layers_.size() && !is_hit(found); ++i) {
      get_from(layers_[i], {key, compiler, nullptr, &found});
    }
  });
  return found;
}

std::optional<Entry> DiskStore::get_from(const Layer& layer, const LookUp& asked) {
  if (layer.read_write) {
    const FolderTrust trust = check_folder(files_, layer.folder, sharing_);
    if (is_absent(trust.error)) return std::nullopt;
    if (trust.error != 0) {
      const std::string problem = fmt::format("stat: {}", error_text(trust.error));
      pass_over(asked, {layer, layer.folder, "", problem}, trust.error, problem,
                fmt::format("{}: folder not read: {}", layer.folder, problem));
      return std::nullopt;
    }
    if (!trust.problem.empty()) {
      pass_over(asked, {layer, layer.folder, "", trust.problem}, 0, layer.folder,
                "folder refused: " + trust.problem);
      return std::nullopt;
    }
  }
  const std::string digest = asked.key.digest();
  const std::string exact = asked.compiler.empty() ? "" : entry_file_name(digest, asked.compiler);
  const bool wants_exact = layer.read_write && !exact.empty();
  if (!exact.empty()) {
    if (auto entry = get_file(layer, exact, asked)) return entry;
    if (wants_exact && asked.trace == nullptr) return std::nullopt;
  }
  for (const std::string& name : names_of(layer, digest, asked)) {
    if (name == exact) continue;
    if (wants_exact) {
      const std::string made_by = parse_entry_file_name(name)->compiler;
      asked.trace->push_back(
          {layer, layer.folder + '/' + name, made_by,
           fmt::format("made by {}; the read-write layer wants {}", made_by, asked.compiler)});
      continue;
    }
    if (auto entry = get_file(layer, name, asked)) return entry;
  }
  return std::nullopt;
}

void DiskStore::pass_over(const LookUp& asked, Candidate candidate, int error,
                          const std::string& id, const std::string& message) {
  if (asked.trace != nullptr) return asked.trace->push_back(std::move(candidate));
  if (asked.refusal == nullptr || !is_refusal(error)) return warn_once(id, message);
  *asked.refusal = "cache: " + message;
}

ReadRules DiskStore::read_rules(const Layer& layer) const {
  ReadRules rules;
  rules.sharing = sharing_;
  if (layer.read_write) rules.identity = current_identity();
  return rules;
}

std::optional<Entry> DiskStore::get_file(const Layer& layer, const std::string& name,
                                         const LookUp& asked) {
  const std::string path = layer.folder + '/' + name;
  ReadRules rules = read_rules(layer);
  if (layer.read_write && asked.trace == nullptr) rules.touch_after_s = k_touch_after_s;
  EntryRead read = read_entry(files_, path, rules);
  if (read.status == ReadStatus::ok && read.entry.key != asked.key.bytes) {
    read.status = ReadStatus::damaged;
    read.problem = k_other_key_problem;
  }
  if (read.status == ReadStatus::absent) return std::nullopt;
  Candidate candidate{layer, path, parse_entry_file_name(name)->compiler, read.problem};
  if (read.status == ReadStatus::ok) {
    if (asked.accept && *asked.accept && !(*asked.accept)(read.entry)) return std::nullopt;
    if (asked.trace != nullptr) asked.trace->push_back(std::move(candidate));
    return std::move(read.entry);
  }
  const bool is_io = read.status == ReadStatus::io_error;
  const std::string_view what = is_io                                ? "entry not read"
                                : read.status == ReadStatus::damaged ? "damaged entry not used"
                                                                     : "entry refused";
  pass_over(asked, std::move(candidate), read.error, is_io ? read.problem : path,
            fmt::format("{}: {}: {}", path, what, read.problem));
  return std::nullopt;
}

// The layer's files for a digest, whatever the compiler, newest first.
std::vector<std::string> DiskStore::names_of(const Layer& layer, const std::string& digest,
                                             const LookUp& asked) {
  const auto listed = files_.list(layer.folder);
  if (!listed && !is_absent(listed.error)) {
    const std::string problem = fmt::format("list: {}", error_text(listed.error));
    pass_over(asked, {layer, layer.folder, "", problem}, listed.error, problem,
              fmt::format("{}: layer not read: {}", layer.folder, problem));
  }
  using Dated = std::tuple<std::int64_t, std::int64_t, std::string>;
  std::vector<Dated> dated;
  for (const std::string& name : listed.value) {
    if (!name.starts_with(digest) || !parse_entry_file_name(name)) continue;
    const auto stat = files_.stat(layer.folder + '/' + name, Links::follow).value;
    dated.emplace_back(stat.modified_s, stat.modified_ns, name);
  }
  std::ranges::sort(dated, std::greater<>());
  std::vector<std::string> names;
  names.reserve(dated.size());
  for (Dated& item : dated) names.push_back(std::move(std::get<2>(item)));
  return names;
}

std::vector<ListedEntry> DiskStore::list() noexcept {
  std::vector<ListedEntry> entries = files();
  read_headers(entries);
  std::erase_if(entries, [](const ListedEntry& entry) { return !entry.is_there; });
  return entries;
}

std::vector<ListedEntry> DiskStore::files() noexcept {
  std::vector<ListedEntry> entries;
  never_throwing("list", [&] {
    for (const Layer& layer : layers_) {
      auto names = files_.list(layer.folder);
      std::ranges::sort(names.value);
      for (const std::string& name : names.value) {
        auto parsed = parse_entry_file_name(name);
        if (!parsed) continue;
        entries.push_back({.layer = layer,
                           .path = layer.folder + '/' + name,
                           .digest = std::move(parsed->digest),
                           .compiler = std::move(parsed->compiler)});
      }
    }
  });
  return entries;
}

void DiskStore::read_headers(std::span<ListedEntry> entries) noexcept {
  never_throwing("list", [&] {
    // Of two layers, so that who we are is asked once.
    const ReadRules read_write = read_rules({.folder = {}, .read_write = true});
    const ReadRules read_only = read_rules({});
    for (ListedEntry& entry : entries) {
      HeaderRead read =
          read_header(files_, entry.path, entry.layer.read_write ? read_write : read_only);
      entry.is_there = read.status != ReadStatus::absent;
      entry.problem = std::move(read.problem);
      entry.key = std::move(read.key);
      entry.metadata = std::move(read.metadata);
      entry.payload_bytes = read.sizes.payload_bytes;
      entry.file_bytes = read.stat.size_bytes;
      entry.modified_s = read.stat.modified_s;
    }
  });
}

EntryRead DiskStore::read(const ListedEntry& entry) noexcept {
  EntryRead read;
  never_throwing("read", [&] {
    read = read_entry(files_, entry.path, read_rules(entry.layer));
    if (read.status == ReadStatus::ok && Key{read.entry.key}.digest() != entry.digest) {
      read.status = ReadStatus::damaged;
      read.problem = k_other_key_problem;
    }
  });
  return read;
}

std::vector<LayerState> DiskStore::layers() noexcept {
  std::vector<LayerState> states;
  never_throwing("layers", [&] {
    for (const Layer& layer : layers_) {
      LayerState state;
      state.layer = layer;
      const auto stat = files_.stat(layer.folder, Links::follow);
      state.exists = stat && stat.value.kind == FileKind::folder;
      state.writable = could_write(files_, layer.folder);
      if (layer.read_write) {
        state.problem = check_folder(files_, layer.folder, sharing_).problem;
      }
      if (const int error = files_.access(layer.folder, R_OK | X_OK);
          state.problem.empty() && (state.exists || !stat) && error != 0 && !is_absent(error)) {
        state.problem = fmt::format("{}: not readable: {}", layer.folder, error_text(error));
      }
      states.push_back(std::move(state));
    }
  });
  return states;
}

void DiskStore::warn_once(const std::string& id, const std::string& message) {
  bool is_first = false;
  {
    const std::lock_guard lock(warned_mutex_);
    is_first = warned_.insert(id).second;
  }
  log().log(is_first ? LogLevel::warn : LogLevel::debug, "cache: {}", message);
}

}  // namespace rlk::cache
