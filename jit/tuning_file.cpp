// SPDX-License-Identifier: Apache-2.0
// Reads and replaces tuning.json.
#include "jit/tuning_file.hpp"

#include "cache/entry_file.hpp"
#include "cache/files/folder.hpp"
#include "cache/files/text_file.hpp"
#include "jit/file_turn.hpp"
#include "runtime/error.hpp"
#include "runtime/log.hpp"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>

namespace rlk::jit {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int k_tuning_format = 1;
constexpr std::uint64_t k_most_tuning_bytes = std::uint64_t{1} << 20;

// The choices of all versions; an empty array where there are none.
OrderedJson read_choices(const std::string& folder) {
  const std::string path = folder + '/' + k_tuning_name;
  const auto read = cache::read_text_file(cache::posix_file_system(), path, k_most_tuning_bytes);
  if (read.is_absent) return OrderedJson::array();
  try {
    if (!read.problem.empty()) throw Error(read.problem);
    const OrderedJson json = OrderedJson::parse(read.text);
    if (json.at("format") != k_tuning_format)
      throw Error(fmt::format("expected format {}", k_tuning_format));
    const OrderedJson& choices = json.at("choices");
    if (!choices.is_array()) throw Error("choices: expected an array");
    return choices;
  } catch (const std::exception& error) {
    log().warn("cache: {}: not used, each op chooses its tiles: {}", path, error.what());
    return OrderedJson::array();
  }
}

// Nothing for a choice of another version.
std::optional<TuningRecord> record_of(const OrderedJson& json) {
  if (json.at("rlk") != RLK_VERSION) return std::nullopt;
  TuningRecord record;
  record.op = json.at("op");
  const std::string pass = json.at("pass"), target = json.at("target");
  if (pass != name(Pass::fwd) && pass != name(Pass::bwd)) throw Error("pass: expected fwd or bwd");
  record.pass = pass == name(Pass::fwd) ? Pass::fwd : Pass::bwd;
  const auto named = target_named(target);
  if (!named) throw Error(fmt::format("target: expected one such as sm_90a, got {}", target));
  record.target = *named;
  record.device = {json.at("device"), json.at("driver")};
  const auto tiles = json.at("tiles").get<std::vector<std::string>>();
  if (tiles.size() != k_num_row_classes) {
    throw Error(fmt::format("tiles: expected {}, got {}", k_num_row_classes, tiles.size()));
  }
  std::ranges::copy(tiles, record.tiles.begin());
  return record;
}

OrderedJson json_of(const TuningRecord& record) {
  return {{"op", record.op},
          {"pass", name(record.pass)},
          {"target", name(record.target)},
          {"device", record.device.name},
          {"driver", record.device.driver},
          {"rlk", RLK_VERSION},
          {"tiles", record.tiles}};
}

// Whether both choose for the same.
bool is_same(const OrderedJson& one, const OrderedJson& other) {
  return std::ranges::all_of(
      std::array{"op", "pass", "target", "device", "driver", "rlk"},
      [&](const char* field) { return one.value(field, "") == other.value(field, ""); });
}

std::int8_t index_of(const Op& op, std::string_view tile) {
  const auto found = std::ranges::find(op.tile_names, tile);
  if (found == op.tile_names.end()) return Tuning::k_own;
  return static_cast<std::int8_t>(found - op.tile_names.begin());
}

}  // namespace

bool is_of(const TuningRecord& record, const Op& op, Pass pass) {
  return record.op == op.name && record.pass == pass;
}

std::vector<TuningRecord> read_tunings(const cache::StoreOptions& store) {
  std::vector<std::string> folders = store.read_only;
  if (store.read_write) folders.insert(folders.begin(), *store.read_write);
  std::vector<TuningRecord> records;
  for (const std::string& folder : folders) {
    try {
      std::vector<TuningRecord> read;
      for (const OrderedJson& choice : read_choices(folder)) {
        if (auto record = record_of(choice)) read.push_back(std::move(*record));
      }
      records.insert(records.end(), read.begin(), read.end());
    } catch (const std::exception& error) {
      log().warn("cache: {}/{}: not used, each op chooses its tiles: {}", folder, k_tuning_name,
                 error.what());
    }
  }
  return records;
}

void store_tuning(const cache::StoreOptions& store, const TuningRecord& record) {
  cache::FileSystem& files = cache::posix_file_system();
  const std::string& folder = store.read_write.value();
  int error = cache::make_folder(files, folder, store.sharing);
  if (error == 0) {
    const FileTurn turn(store, cache::k_tuning_byte);
    const OrderedJson added = json_of(record);
    OrderedJson all = OrderedJson::array();
    for (const OrderedJson& choice : read_choices(folder)) {
      if (choice.is_object() && !is_same(choice, added)) all.push_back(choice);
    }
    all.push_back(added);
    const OrderedJson json = {{"format", k_tuning_format}, {"choices", all}};
    error = cache::publish(files, folder, k_tuning_name, json.dump(1) + '\n', store.sharing);
  }
  if (error != 0) {
    throw Error(
        fmt::format("{}/{}: not written: {}", folder, k_tuning_name, cache::error_text(error)));
  }
}

Tuning tuning_of(const TuningRecord& record, const Op& op) {
  Tuning tuning;
  for (std::size_t i = 0; i < tuning.tiles.size(); ++i) {
    tuning.tiles[i] = index_of(op, record.tiles[i]);
    if (tuning.tiles[i] != Tuning::k_own || record.tiles[i] == k_own_tile) continue;
    log().warn("cache: {}: tile: expected {}, got \"{}\"; {} chooses", k_tuning_name,
               fmt::join(op.tile_names, ", "), record.tiles[i], op.name);
  }
  return tuning;
}

std::vector<Tuning> tunings_for(const std::vector<TuningRecord>& records, const Op& op, Pass pass,
                                Target target) {
  std::vector<Tuning> tunings;
  for (const TuningRecord& record : records) {
    if (is_of(record, op, pass) && record.target == target) {
      tunings.push_back(tuning_of(record, op));
    }
  }
  if (tunings.empty()) tunings.emplace_back();
  return tunings;
}

Tuning forced_tuning(const Op& op, std::string_view tile) {
  Tuning tuning;
  tuning.tiles.fill(index_of(op, tile));
  return tuning;
}

}  // namespace rlk::jit
