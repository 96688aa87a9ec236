// SPDX-License-Identifier: Apache-2.0
// The folders of the cache: whether they are there, may be written to, and hold sound entries.
#include "cli/doctor/findings.hpp"
#include "cli/text/text.hpp"

#include <fmt/format.h>

#include <map>

namespace rlk::cli {
namespace {

std::string rights_text(const cache::LayerState& state) {
  if (!state.layer.read_write) return "read-only, ";
  if (!state.exists) return state.writable ? "made at the first compile, " : "cannot be made, ";
  const auto stat = cache::posix_file_system().stat(state.layer.folder, cache::Links::follow);
  return fmt::format("{}, mode {:04o}, owner {}, ", state.writable ? "writable" : "not writable",
                     stat.value.mode, stat.value.owner);
}

}  // namespace

void examine_layers(const jit::Layers& layers, cache::DiskStore& store, Policy policy,
                    Findings& findings) {
  // What stores nothing misses no folder of its own.
  const State no_folder = policy == Policy::off ? State::good : State::warn;
  if (!layers.note.empty()) findings.push_back({"cache", no_folder, layers.note});
  // Entries and bytes by folder.
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> totals;
  int num_damaged = 0;
  for (const cache::ListedEntry& entry : store.list()) {
    auto& [num_entries, num_bytes] = totals[entry.layer.folder];
    ++num_entries;
    num_bytes += entry.file_bytes;
    num_damaged += entry.problem.empty() ? 0 : 1;
  }
  for (const cache::LayerState& state : store.layers()) {
    const auto& [num_entries, num_bytes] = totals[state.layer.folder];
    Finding finding{state.layer.read_write ? "cache" : "layer", State::good,
                    fmt::format("{}: {}{}, {}", state.layer.folder, rights_text(state),
                                entries_text(num_entries), bytes_text(num_bytes))};
    if (!state.problem.empty()) {
      finding.state = State::fail;
      finding.text = state.problem;
    } else if (state.layer.read_write && !state.writable) {
      finding.state = no_folder;
    } else if (!state.layer.read_write && !state.exists) {
      finding.state = State::warn;
      finding.text = layer_problem(state);
    }
    finding.details = {{"folder", state.layer.folder},
                       {"read_write", state.layer.read_write},
                       {"writable", state.writable},
                       {"entries", num_entries},
                       {"bytes", num_bytes}};
    findings.push_back(std::move(finding));
  }
  if (num_damaged > 0) {
    findings.push_back(
        {"entries", State::warn,
         fmt::format("{} of no use; see rlk-jit list; a call that needs one goes on without it",
                     num_damaged)});
  }
}

}  // namespace rlk::cli
