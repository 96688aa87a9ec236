// SPDX-License-Identifier: Apache-2.0
// rlk-jit export.
#include "cache/files/new_file.hpp"
#include "cache/key.hpp"
#include "cache/pack.hpp"
#include "cli/commands.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/query/consistency.hpp"
#include "cli/text/output_path.hpp"
#include "cli/text/text.hpp"
#include "jit/warm/manifest.hpp"
#include "runtime/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

namespace rlk::cli {
namespace {

struct LeftOut {
  std::string path;
  std::string problem;
};

// The folders to take from: all that a process would use but the built-in one.
std::vector<std::string> folders_of(const Context& context, cache::DiskStore& store) {
  std::vector<std::string> folders;
  for (const cache::LayerState& state : store.layers()) {
    if (const std::string problem = layer_problem(state); !problem.empty()) {
      tell(context, "left out: " + problem);
    } else if (state.layer.folder != jit::builtin_folder(context.settings)) {
      folders.push_back(state.layer.folder);
    }
  }
  return folders;
}

std::string op_of(const CachedKernel& kernel) {
  for (const auto& field :
       cache::decode_key(kernel.entry.key).value_or(std::vector<cache::KeyField>())) {
    if (field.tag == "op") return field.value;
  }
  return {};
}

// Keeps those whose value is one of the words. A word that is no kernel's is an error: a pack that
// lacks what it was made for would be found out late.
template <class ValueOf>
void keep(std::vector<const CachedKernel*>& kernels, const std::vector<std::string>& words,
          const char* option, const ValueOf& value_of) {
  if (words.empty()) return;
  std::set<std::string> values;
  for (const CachedKernel* kernel : kernels) values.insert(value_of(*kernel));
  for (const std::string& word : words) {
    if (!values.contains(word)) throw Error(fmt::format("{} {}: no entry is of it", option, word));
  }
  std::erase_if(kernels, [&](const CachedKernel* kernel) {
    return std::ranges::find(words, value_of(*kernel)) == words.end();
  });
}

std::vector<const CachedKernel*> choose(const std::vector<CachedKernel>& all,
                                        const ExportCommand& asked) {
  std::vector<const CachedKernel*> chosen;
  chosen.reserve(all.size());
  for (const CachedKernel& kernel : all) chosen.push_back(&kernel);
  if (!asked.words.empty()) {
    std::unordered_set<const CachedKernel*> named;
    for (const std::string& word : asked.words) {
      const auto found = kernels_named(all, word);
      if (found.empty()) throw Error(fmt::format("\"{}\": no entry has this name or key", word));
      named.insert(found.begin(), found.end());
    }
    std::erase_if(chosen, [&](const CachedKernel* kernel) { return !named.contains(kernel); });
  }
  keep(chosen, asked.archs, "--arch",
       [](const CachedKernel& kernel) { return kernel.metadata.target; });
  keep(chosen, asked.ops, "--op", op_of);
  if (asked.since) {
    const std::int64_t first_s = std::time(nullptr) - seconds_named(*asked.since, "--since");
    std::erase_if(chosen,
                  [&](const CachedKernel* kernel) { return kernel->entry.modified_s < first_s; });
  }
  return chosen;
}

class Exporter {
 public:
  Exporter(const Context& context, cache::DiskStore& store, cache::NewFile& file)
      : context_(context),
        store_(store),
        writer_([&file](std::string_view bytes) { return file.write(bytes); }) {}

  // 0 or an errno. The layers' order is that of `kernels`.
  int write(const std::vector<const CachedKernel*>& kernels, const std::set<std::string>& listed) {
    std::map<std::string, std::vector<const CachedKernel*>> by_name;
    for (const CachedKernel* kernel : kernels) by_name[file_name(*kernel)].push_back(kernel);
    int error = writer_.start();
    for (auto at = by_name.begin(); at != by_name.end() && error == 0; ++at) {
      for (const CachedKernel* kernel : at->second) {  // the first layer's that is sound
        const auto entry = read(*kernel);
        if (!entry) continue;
        error =
            writer_.add(at->first, cache::encode_entry(*entry), listed.contains(kernel->name()));
        break;
      }
    }
    return error != 0 ? error : writer_.finish();
  }

  const cache::PackWriter& writer() const { return writer_; }
  const std::vector<LeftOut>& left_out() const { return left_out_; }

 private:
  std::optional<cache::Entry> read(const CachedKernel& kernel) {
    cache::EntryRead read = store_.read(kernel.entry);
    if (read.status == cache::ReadStatus::absent) return std::nullopt;  // vanished meanwhile
    std::string problem = read.status == cache::ReadStatus::ok
                              ? inconsistency(file_name(kernel), read.entry)
                              : read.problem;
    if (problem.empty()) return std::move(read.entry);
    tell(context_, fmt::format("left out: {}: {}", kernel.entry.path, problem));
    left_out_.push_back({kernel.entry.path, std::move(problem)});
    return std::nullopt;
  }

  const Context& context_;
  cache::DiskStore& store_;
  cache::PackWriter writer_;
  std::vector<LeftOut> left_out_;
};

void print(const Context& context, const std::string& path, const Exporter& exporter) {
  const cache::PackWriter& writer = exporter.writer();
  if (!context.json) {
    context.out << fmt::format("{}, {}: {}\nsha256 {}\n", entries_text(writer.num_entries()),
                               bytes_text(writer.num_bytes()), printable(path), writer.sha256());
    return;
  }
  Json json;
  json["path"] = path;
  json["entries"] = writer.num_entries();
  json["bytes"] = writer.num_bytes();
  json["sha256"] = writer.sha256();
  json["left_out"] = Json::array();
  for (const auto& [file, problem] : exporter.left_out()) {
    json["left_out"].push_back({{"path", file}, {"problem", problem}});
  }
  print_json(context.out, json);
}

}  // namespace

int export_pack(const Context& context, const ExportCommand& asked) {
  if (asked.pack == "-") throw InvalidArgument("pack: expected a file, got \"-\"");
  cache::DiskStore store(layers_of(context).options);
  const auto folders = folders_of(context, store);
  std::vector<CachedKernel> all = all_kernels(context);
  std::erase_if(all, [&](const CachedKernel& kernel) {
    return std::ranges::find(folders, kernel.entry.layer.folder) == folders.end();
  });
  const std::vector<const CachedKernel*> kernels = choose(all, asked);
  std::set<std::string> listed;
  for (const std::string& folder : folders) {
    for (auto& name : jit::read_manifest(folder)) listed.insert(std::move(name));
  }
  const std::string path = output_path(asked.pack);
  cache::NewFile file(cache::posix_file_system(), cache::name_beside(path), std::nullopt);
  Exporter exporter(context, store, file);
  int error = file.error();
  if (error == 0) error = exporter.write(kernels, listed);
  if (error == 0 && exporter.writer().num_entries() == 0) {
    return tell(context, "no sound entry to export; nothing is written");
  }
  if (error == 0) error = file.publish(path);
  if (error != 0) {
    return tell(context, fmt::format("{}: not written: {}", path, cache::error_text(error)));
  }
  print(context, asked.pack, exporter);
  return ok;
}

}  // namespace rlk::cli
