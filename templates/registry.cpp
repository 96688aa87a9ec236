// SPDX-License-Identifier: Apache-2.0
// Look-ups in the lists that the build wrote.
#include "templates/registry.hpp"

#include "jit/op.hpp"

namespace rlk::templates {

const CpuSource* find_cpu_source(std::string_view op, std::string_view level) {
  for (const auto& source : cpu_sources()) {
    if (source.op == op && source.level == level) return &source;
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
