// SPDX-License-Identifier: Apache-2.0
// The fields of a key, in the order of docs/cache-format.md.
#include "jit/build_key.hpp"

#include "cache/entry.hpp"
#include "jit/nvrtc/nvrtc_compiler.hpp"
#include "runtime/error.hpp"

#include <fmt/format.h>

#include <string>

namespace rlk::jit {
namespace {

// Raise when host and kernel disagree with older artifacts: argument structs, entry points, steps.
constexpr std::string_view k_abi_version = "1";

// Raise when other things are done to PTX once it is compiled.
constexpr std::string_view k_ptx_form = "2";

// The options that decide the code, in order. The CPU's compiler has none: all is in its identity.
std::vector<std::string> options_of(const Specialization& spec) {
  if (backend(spec.target) == Backend::cpu) return {};
  auto options = nvrtc_options(spec.target);
  options.push_back(fmt::format("-DRLK_BACKWARD={}", spec.pass == Pass::bwd ? 1 : 0));
  options.push_back(fmt::format("-DRLK_SHARED_LIMIT={}", shared_limit_bytes(spec.target)));
  return options;
}

}  // namespace

const KernelSource& source_of(const Specialization& spec) {
  const KernelSource* source = spec.op->find_source(spec.op->name, spec.target);
  if (source == nullptr) {
    throw Unsupported("{}: target: this build has no template for {}", spec.op->name,
                      name(spec.target));
  }
  return *source;
}

CompileRequest compile_request(const Specialization& spec) {
  CompileRequest request;
  request.name = spec.text();
  request.target = name(spec.target);
  request.source = source_of(spec).code;
  for (std::size_t i = 0; i < spec.op->constants.size(); ++i) {
    request.constants.push_back({spec.op->constants[i].symbol, spec.values[i]});
  }
  for (const char* entry : spec.op->entries(spec.pass, backend(spec.target))) {
    request.entries.emplace_back(entry);
  }
  request.options = options_of(spec);
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
  if (spec.target == Target::compute_80) key.field("ptx", k_ptx_form);
  for (const auto& option : options_of(spec)) key.field("option", option);
  return key.finish();
}

}  // namespace rlk::jit
