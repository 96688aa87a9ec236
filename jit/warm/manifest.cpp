// SPDX-License-Identifier: Apache-2.0
// Reads and merges manifests.
#include "jit/warm/manifest.hpp"

#include "cache/entry_file.hpp"
#include "cache/files/folder.hpp"
#include "cache/files/text_file.hpp"
#include "jit/build_key.hpp"
#include "jit/file_turn.hpp"
#include "jit/parse_specialization.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <nlohmann/json.hpp>

#include <set>

namespace rlk::jit {
namespace {

constexpr int k_manifest_format = 1;
constexpr std::uint64_t k_most_manifest_bytes = std::uint64_t{64} << 20;

void expect_no_error(const cache::StoreOptions& store, int error) {
  if (error == 0) return;
  throw Error(fmt::format("{}/{}: not written: {}", *store.read_write, k_manifest_name,
                          cache::error_text(error)));
}

void write(const cache::StoreOptions& store, const std::set<std::string>& names) {
  const nlohmann::ordered_json json = {{"format", k_manifest_format}, {"kernels", names}};
  expect_no_error(store, cache::publish(cache::posix_file_system(), *store.read_write,
                                        k_manifest_name, json.dump(1) + '\n', store.sharing));
}

// By any compiler. Of a name that this build does not know nothing can be said: it stays.
bool is_there(cache::DiskStore& folder, const std::string& name, Ops ops) {
  try {
    return folder.get(build_key(parse_specialization(name, ops)), "").has_value();
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

std::vector<std::string> read_manifest(const std::string& folder) {
  const std::string path = folder + '/' + k_manifest_name;
  const auto read = cache::read_text_file(cache::posix_file_system(), path, k_most_manifest_bytes);
  if (read.is_absent) return {};
  try {
    if (!read.problem.empty()) throw Error(read.problem);
    const auto json = nlohmann::json::parse(read.text);
    if (json.at("format") != k_manifest_format)
      throw Error(fmt::format("expected format {}", k_manifest_format));
    std::vector<std::string> names;
    for (const auto& name : json.at("kernels")) names.push_back(name.get<std::string>());
    return names;
  } catch (const std::exception& error) {
    log().warn("cache: {}: manifest not used: {}", path, error.what());
    return {};
  }
}

void add_to_manifest(const cache::StoreOptions& store, const std::vector<std::string>& names) {
  expect_no_error(store,
                  cache::make_folder(cache::posix_file_system(), *store.read_write, store.sharing));
  const FileTurn turn(store, cache::k_manifest_byte);
  const auto before = read_manifest(*store.read_write);
  std::set<std::string> all(before.begin(), before.end());
  all.insert(names.begin(), names.end());
  if (all.size() != before.size() || before.empty()) write(store, all);
}

void trim_manifest(const cache::StoreOptions& store, Ops ops) {
  const FileTurn turn(store, cache::k_manifest_byte);
  const auto before = read_manifest(*store.read_write);
  cache::StoreOptions alone = store;
  alone.read_only.clear();
  cache::DiskStore folder(alone);
  std::set<std::string> left;
  for (const std::string& name : before) {
    if (is_there(folder, name, ops)) left.insert(name);
  }
  if (left.size() != before.size()) write(store, left);
}

}  // namespace rlk::jit
