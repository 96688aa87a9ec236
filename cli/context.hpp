// SPDX-License-Identifier: Apache-2.0
// What every command gets: the settings, where to look, how and where to print.
#pragma once

#include "cache/disk_store.hpp"
#include "jit/layers.hpp"
#include "runtime/settings.hpp"

#include <istream>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace rlk::cli {

// Exit codes.
inline constexpr int ok = 0;
inline constexpr int failed = 1;       // not found, not healthy, could not be written
inline constexpr int wrong_usage = 2;  // of the command line

struct Context {
  Settings settings;
  std::vector<std::string> extra_layers;  // read-only, before the built-in one
  bool json = false;
  bool colour = false;
  bool summary = false;  // for people: totals below a table
  std::ostream& out;
  std::ostream& err;
  std::istream* answers = nullptr;  // of a person who can be asked; null: nobody is there
};

// One line to the context's err, its bytes made printable. Returns the code, to be returned.
int tell(const Context& context, const std::string& message, int code = failed);

// The layers that a process with these settings would use, and those asked for.
jit::Layers layers_of(const Context& context);

// Whether there is a folder that may be written; else the context's err has been told why not.
bool has_read_write(const Context& context, const jit::Layers& layers);

// Adds the names to the manifest of the folder that may be written. Where that fails the context's
// err is told, and it is a failure if kernels were stored: who loads by the manifest would miss
// them.
int list_in_manifest(const Context& context, const cache::StoreOptions& store,
                     const std::vector<std::string>& names, bool has_stored);

// Why a layer is not looked into; "" if it is, or if it is still to be made.
std::string layer_problem(const cache::LayerState& state);

// The same of all layers to the context's err. Whether all are well.
bool tell_layers(const Context& context);

// "user", "built-in", or the folder of another layer.
std::string layer_name(const Context& context, const cache::Layer& layer);

}  // namespace rlk::cli
