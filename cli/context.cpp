// SPDX-License-Identifier: Apache-2.0
// From the command line's settings to layers.
#include "cli/context.hpp"

#include "cli/text/text.hpp"
#include "jit/warm/manifest.hpp"
#include "runtime/error.hpp"

#include <fmt/format.h>

namespace rlk::cli {

int tell(const Context& context, const std::string& message, int code) {
  context.err << "rlk-jit: " << printable(message) << '\n';
  return code;
}

jit::Layers layers_of(const Context& context) {
  jit::Layers layers = jit::choose_layers(context.settings);
  auto& folders = layers.options.read_only;
  // The built-in layer stays the last.
  folders.insert(folders.end() - 1, context.extra_layers.begin(), context.extra_layers.end());
  return layers;
}

bool has_read_write(const Context& context, const jit::Layers& layers) {
  if (!layers.note.empty()) tell(context, layers.note);
  return layers.options.read_write.has_value();
}

int list_in_manifest(const Context& context, const cache::StoreOptions& store,
                     const std::vector<std::string>& names, bool has_stored) {
  if (names.empty()) return ok;
  try {
    jit::add_to_manifest(store, names);
    return ok;
  } catch (const Error& error) {
    if (has_stored) return tell(context, error.what());
    return tell(context, fmt::format("{}; no kernel had to be stored", error.what()), ok);
  }
}

std::string layer_problem(const cache::LayerState& state) {
  if (!state.problem.empty()) return state.problem;
  if (state.exists || state.layer.read_write) return "";
  return state.layer.folder + ": no such folder";
}

bool tell_layers(const Context& context) {
  bool is_well = true;
  for (const auto& state : cache::DiskStore(layers_of(context).options).layers()) {
    const std::string problem = layer_problem(state);
    if (problem.empty()) continue;
    tell(context, problem);
    is_well = false;
  }
  return is_well;
}

std::string layer_name(const Context& context, const cache::Layer& layer) {
  if (layer.read_write) return "user";
  if (layer.folder == jit::builtin_folder(context.settings)) return "built-in";
  return layer.folder;
}

}  // namespace rlk::cli
