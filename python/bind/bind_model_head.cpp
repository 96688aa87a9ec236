// SPDX-License-Identifier: Apache-2.0
// read_head: what a model's class does to its logits, of the one table that warm reads too.
#include "jit/warm/config_file.hpp"
#include "jit/warm/model_head.hpp"
#include "python/bind/module.hpp"
#include "python/bind/without_gil.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace rlk::bind {
namespace {

// (columns, numbers that linear_logp's call passes, by name) of a configuration in JSON; `vocab`:
// the rows of its head. What is assumed is logged.
std::pair<std::int64_t, std::map<std::string, double>> read_head(const std::string& name,
                                                                 const std::string& json,
                                                                 std::int64_t vocab) {
  jit::ModelShape shape;
  without_gil([&] { shape = jit::read_head(jit::parse_config(name, json), vocab); });
  return {shape.hidden, {shape.numbers.begin(), shape.numbers.end()}};
}

}  // namespace

void bind_model_head(py::module_& module) { module.def("read_head", read_head); }

}  // namespace rlk::bind
