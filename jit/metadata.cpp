// SPDX-License-Identifier: Apache-2.0
// Writes an entry's metadata. A number that the compiler does not know is left out.
#include "jit/metadata.hpp"

#include "jit/op.hpp"

#include <nlohmann/json.hpp>

#include <ctime>

namespace rlk::jit {

std::string metadata(const Specialization& spec, const CompileRequest& request,
                     const CompileStats& stats, const std::string& compiler) {
  nlohmann::ordered_json json;
  json["name"] = request.name;
  json["target"] = request.target;
  json["generic"] = spec.is_generic();
  json["compiler"] = compiler;
  // What a listing shows comes first: it reads no further.
  json["created"] = static_cast<std::int64_t>(std::time(nullptr));
  json["compile_ms"] = stats.compile_ms;
  const auto known = [&](const char* field, std::int64_t value) {
    if (value >= 0) json[field] = value;
  };
  known("code_bytes", stats.code_bytes);
  json["options"] = request.options;
  json["entries"] = request.entries;
  for (const auto& constant : request.constants) json["constants"][constant.name] = constant.value;
  known("registers", stats.registers);
  known("shared_bytes", stats.shared_bytes);
  if (backend(spec.target) == Backend::cuda) {
    json["dynamic_shared_bytes"] = spec.op->dynamic_shared_bytes(spec);
  }
  known("local_bytes", stats.local_bytes);
  known("spilled_bytes", stats.spilled_bytes);
  known("num_spills", stats.num_spills);
  return json.dump();
}

std::string compiler_named(const std::string& metadata) {
  const auto json = nlohmann::json::parse(metadata, nullptr, false);
  const auto* compiler =
      json.is_object() && json.contains("compiler") ? &json["compiler"] : nullptr;
  return compiler != nullptr && compiler->is_string() ? compiler->get<std::string>()
                                                      : "an unknown compiler";
}

}  // namespace rlk::jit
