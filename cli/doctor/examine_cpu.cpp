// SPDX-License-Identifier: Apache-2.0
// The CPU: its level, and LLVM by compiling a kernel.
#include "cli/doctor/findings.hpp"
#include "cli/text/text.hpp"
#include "jit/build_key.hpp"
#include "jit/llvm_compiler.hpp"

#include <fmt/format.h>

namespace rlk::cli {
namespace {

// nullopt: no kernel of ours runs here.
std::optional<Target> examine_processor(const Context& context, Findings& findings) {
  const auto host = host_cpu_target();
  const auto target = context.settings.arch.cpu ? context.settings.arch.cpu : host;
  if (!target) {
    findings.push_back(
        {"processor", State::fail, "expected x86-64-v2 or later, got an older or another one"});
    return std::nullopt;
  }
  std::string text(rlk::name(*target));
  if (target != host) {
    text += fmt::format(" (could be {}; RLK_ARCH says less)", rlk::name(*host));
  }
  findings.push_back({"processor", State::good, text, {{"target", rlk::name(*target)}}});
  return target;
}

// Compiles the first generic kernel: a library that is there may still not open.
bool examine_compiler(const Context& context, Target target, jit::LlvmCompiler& compiler,
                      Findings& findings) {
  const std::string where = compiler.library().string();
  const bool is_wanted = context.settings.policy != Policy::off;
  if (!compiler.available()) {
    findings.push_back({"llvm", is_wanted ? State::warn : State::good, compiler.why_not()});
    return false;
  }
  try {
    const auto specs = generic_variants(target);
    if (specs.empty()) return false;
    const auto compiled = compiler.compile(jit::compile_request(specs.front()));
    findings.push_back({"llvm",
                        State::good,
                        fmt::format("{} in {}, tried in {}", compiler.identity(), where,
                                    milliseconds_text(compiled.stats.compile_ms)),
                        {{"identity", compiler.identity()}, {"path", where}}});
    return true;
  } catch (const std::exception& error) {
    const std::string problem = error.what();
    const bool names_library = problem.find(where) != std::string::npos;
    findings.push_back({"llvm", is_wanted ? State::fail : State::warn,
                        names_library ? problem : where + ": " + problem});
    return false;
  }
}

}  // namespace

void examine_cpu(const Context& context, cache::DiskStore& store, Findings& findings) {
  const auto target = examine_processor(context, findings);
  if (!target) return;
  jit::LlvmCompiler compiler(context.settings.package_folder);
  const bool works = examine_compiler(context, *target, compiler, findings);
  findings.push_back(
      examine_calls(context, store, "cpu calls", *target, works ? &compiler : nullptr));
}

}  // namespace rlk::cli
