// SPDX-License-Identifier: Apache-2.0
// Look-ups in the lists that the build wrote.
#include "templates/registry.hpp"

namespace rlk::templates {

const KernelSource* find_source(std::string_view op, Target target) {
  const auto family = backend(target) == Backend::cuda ? "cuda" : name(target);
  for (const auto& source : kernel_sources()) {
    if (source.op == op && source.family == family) return &source;
  }
  return nullptr;
}

const jit::Op* find_op(std::string_view name) {
  for (const jit::Op* op : ops()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

}  // namespace rlk::templates
