// SPDX-License-Identifier: Apache-2.0
// `tuning.json` of a cache folder: the tiles that `rlk-jit tune` found the fastest, a device, a
// driver and a version of rlk each. docs/cache-format.md has its form.
#pragma once

#include "cache/disk_store.hpp"
#include "jit/op.hpp"
#include "jit/tuning.hpp"
#include "runtime/loader.hpp"

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::jit {

inline constexpr const char* k_tuning_name = "tuning.json";
inline constexpr std::string_view k_own_tile = "own";  // in it: the op's own choice

// Of this version of rlk.
struct TuningRecord {
  std::string op;
  Pass pass = Pass::fwd;
  Target target = Target::sm_90a;
  runtime::DeviceModel device;
  std::array<std::string, k_num_row_classes> tiles;  // by name
};
bool is_of(const TuningRecord& record, const Op& op, Pass pass);

// Of all layers, in their order. A file that is no such file is left out, with a warning.
std::vector<TuningRecord> read_tunings(const cache::StoreOptions& store);

// Into the read-write folder, in place of a choice for the same. Throws Error where it cannot be
// written.
void store_tuning(const cache::StoreOptions& store, const TuningRecord& record);

// A tile that this build does not have is the op's own choice, with a warning.
Tuning tuning_of(const TuningRecord& record, const Op& op);

// What warm compiles for, which knows no device: each choice for the target; else the op's own.
std::vector<Tuning> tunings_for(const std::vector<TuningRecord>& records, const Op& op, Pass pass,
                                Target target);

// One tile for every call; the op's own choice where the op has none of that name.
Tuning forced_tuning(const Op& op, std::string_view tile);

}  // namespace rlk::jit
