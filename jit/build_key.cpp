// SPDX-License-Identifier: Apache-2.0
// The fields of a key, in the order of docs/cache-format.md.
#include "jit/build_key.hpp"

#include "cache/entry.hpp"
#include "jit/op.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

#include <string>

namespace rlk::jit {
namespace {

// Raise when host and kernel disagree with older artifacts: argument structs, entry points, steps.
constexpr std::string_view k_abi_version = "1";

const templates::CpuSource& source_of(const Specialization& spec) {
  const auto* source = templates::find_cpu_source(spec.op->name, name(spec.target));
  if (source == nullptr) {
    throw Unsupported("{}: target: no template for {} in this build; have x86-64-v2, -v3, -v4",
                      spec.op->name, name(spec.target));
  }
  return *source;
}

}  // namespace

CompileRequest compile_request(const Specialization& spec) {
  CompileRequest request;
  request.name = spec.text();
  request.target = name(spec.target);
  request.source = source_of(spec).bitcode;
  for (std::size_t i = 0; i < spec.op->constants.size(); ++i) {
    request.constants.push_back({spec.op->constants[i].symbol, spec.values[i]});
  }
  for (const char* entry : spec.op->entries(spec.pass)) request.entries.emplace_back(entry);
  return request;
}

cache::Key build_key(const Specialization& spec) {
  cache::KeyBuilder key;
  key.field("format", std::to_string(cache::format_version));
  key.field("abi", k_abi_version);
  key.field("backend", backend(spec.target) == Backend::cpu ? "cpu" : "cuda");
  key.field("op", spec.op->name);
  key.field("pass", name(spec.pass));
  key.field("template", source_of(spec).digest);
  key.field("specialization", spec.text());
  key.field("target", name(spec.target));
  return key.finish();
}

}  // namespace rlk::jit
